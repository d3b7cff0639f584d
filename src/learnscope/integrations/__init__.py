"""Trainers of other packages: their life cycles as sessions, one module a package, imported when it is used.

What they share is there once: `wrapping` (our functions around a trainer's methods), `carrying` (a session's state in
its checkpoints), `placing` (the run's folder), `headlines` (a few numbers for its own trackers), `options`, `sampling`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

CURE = (
    "In a loop of your own: w = ls.watch(model, optimizer, run=…) before it, w.log(loss=loss) in it, w.close() after. "
    "Accelerate and torchtitan have lines of their own: docs/trainers.md. For another trainer, open the session in its "
    "callback for the beginning of training."
)


def watch_trainer(trainer: Any, **options: Any) -> Any:
    """Watch what a trainer trains: one line before `trainer.train()` or `trainer.fit(…)`; returns the callback.

    Args:
        trainer: a `transformers.Trainer` or one of TRL's, or a `lightning.Trainer`.
        options: those of `ls.watch`, such as `run=`, `probes=`, `holdout=`, `alerts=`. By default the run is a folder
            inside the trainer's own output folder, and the holdout is the trainer's own evaluation set.
    """
    packages = {base.__module__.partition(".")[0] for base in type(trainer).__mro__}
    if "transformers" in packages:
        from learnscope.integrations.hf import watch_hf

        return watch_hf(trainer, **options)
    if packages & {"lightning", "pytorch_lightning"}:
        return import_module("learnscope.integrations.lightning").watch_lightning(trainer, **options)
    given = trainer.__name__ if isinstance(trainer, type) else type(trainer).__name__
    what = f"{given} is a class: pass the trainer itself" if isinstance(trainer, type) else f"a {given} is no trainer"
    raise TypeError(f"watch_trainer: {what} of transformers, TRL or Lightning. {CURE}")
