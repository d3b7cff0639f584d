"""Which columns of a data set hold prompts, completions, texts or messages."""

from __future__ import annotations

from collections.abc import Sequence

from learnscope.options import did_you_mean
from learnscope.training.errors import TrainError
from learnscope.training.settings.config import DatasetConfig

COUNTDOWN = {"nums", "target"}
ANSWERS = ("completion", "answer", "response")


def columns_of(available: Sequence[str], config: DatasetConfig) -> dict[str, str]:
    """The columns by the trainers' names: those configured, or the usual ones. Empty for countdown problems."""
    columns = {kind: getattr(config, f"{kind}_column") for kind in ("messages", "prompt", "completion", "text")}
    named = {kind: column for kind, column in columns.items() if column is not None}
    for kind, column in named.items():
        if column not in available:
            hint = did_you_mean(column, available)
            raise TrainError(
                f"config.dataset.{kind}_column: there is no column {column!r}.{hint} There are: {', '.join(available)}."
            )
    if not named and set(available) >= COUNTDOWN:
        return {}
    for kind in ("messages", "prompt", "text"):
        if kind in named or (not named.keys() - {"completion"} and kind in available):
            names = {kind: named.get(kind, kind)}
            answers = named.get("completion") or next((name for name in ANSWERS if name in available), None)
            return {**names, "completion": answers} if kind == "prompt" and answers is not None else names
    raise TrainError(
        f"the data set has the columns {', '.join(available)}, none of which is known: `prompt` with `completion`, "
        "`text`, `messages`, or `nums` with `target`; say which hold them, e.g. --config.dataset.prompt_column question"
    )
