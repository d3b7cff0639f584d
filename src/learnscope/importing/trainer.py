"""The Hugging Face Trainer: the history in `trainer_state.json`, which it writes with every checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from learnscope.importing.foreign import ORDER, Foreign, Gathered, Progress, as_float
from learnscope.importing.tensorboard import replaced_notes
from learnscope.store.errors import RunError

FILE = "trainer_state.json"
STEP = "step"
_SETTINGS = (
    "max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps", "trial_params",
)  # fmt: skip
_ABOUT = ("global_step", "best_global_step", "best_metric", "best_model_checkpoint", "total_flos")
SUMMARIES = {"train_loss": "the mean over the whole training"}
"""What the Trainer logs once, at the end."""


def read(path: Path, *, name: str, step: str | None = None, progress: Progress = lambda *_: None) -> Foreign:  # noqa: ARG001  (small)
    """One training from its state."""
    state = _state(path)
    key = STEP if step in (None, ORDER) else step
    gathered = Gathered(in_order=step == ORDER)
    left_out: dict[str, Counter[str]] = {}
    for number, line in enumerate(state["log_history"], 1):
        where = f"{path}, entry {number} of log_history"
        if not isinstance(line, dict):
            raise RunError(f"{where} is {line!r}, not an object")
        at = line.get(key)
        if not isinstance(at, int) or isinstance(at, bool):
            raise RunError(f"{where}: its {key} is {at!r}, not a whole number; it has {', '.join(line)}")
        for what, value in line.items():
            if what == key:
                continue
            if isinstance(value, int | float):
                gathered.add(what, at, as_float(value))
            elif value is not None:
                left_out.setdefault(what, Counter())[type(value).__name__] += 1
    curves, starts = gathered.finished()
    if not curves:
        raise RunError(f"{path} has an empty log_history: nothing was logged before this checkpoint")
    others = {what: ", ".join(f"{n:,} × {kind}" for kind, n in kinds.items()) for what, kinds in left_out.items()}
    config = {key: state[key] for key in _SETTINGS if state.get(key) is not None}
    return Foreign(
        format="trainer", name=name, files=[path], curves=curves, starts=starts, config=config,
        about={key: state[key] for key in _ABOUT if state.get(key) is not None}, left_out=others,
        step="the order of writing" if step == ORDER else key, read_with="json", summaries=SUMMARIES,
        status=_status(state), notes=replaced_notes(gathered),
    )  # fmt: skip


def _state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise RunError(f"{path}, line {error.lineno}, is no JSON ({error.msg}): it may have been cut off") from error
    except (ValueError, RecursionError) as error:  # bytes that are no text, a number of too many digits
        raise RunError(f"{path} is no JSON ({error})") from error
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise RunError(f"{path} is no state of a Trainer: it has no list log_history")
    return state


def _status(state: dict[str, Any]) -> str | None:
    """Finished if it took all steps that it was to take; else it may have been stopped, or this is no last state."""
    done, to_do = state.get("global_step"), state.get("max_steps")
    return "finished" if isinstance(done, int) and isinstance(to_do, int) and 0 < to_do <= done else None
