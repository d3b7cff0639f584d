"""transformers' `Trainer` and TRL's trainers.

`LearnscopeCallback` needs transformers: pip install 'learnscope[hf]'. It is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from learnscope.generators import unmoved_generators

if TYPE_CHECKING:
    from learnscope.integrations.hf.callback import LearnscopeCallback

__all__ = ["LearnscopeCallback", "watch_hf"]


def watch_hf(trainer: Any, **options: Any) -> LearnscopeCallback:
    """Add a `LearnscopeCallback` to a trainer, before `trainer.train()`."""
    callback = _load()(**options)
    trainer.add_callback(callback)
    callback.attach(trainer)
    return callback


def _load() -> type[LearnscopeCallback]:
    with unmoved_generators():
        try:
            from learnscope.integrations.hf.callback import LearnscopeCallback
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "transformers":
                raise
            raise ImportError(
                f"LearnscopeCallback needs transformers: pip install 'learnscope[hf]' ({error})"
            ) from error
    return LearnscopeCallback


def __getattr__(name: str) -> Any:
    if name != "LearnscopeCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = loaded = _load()
    return loaded
