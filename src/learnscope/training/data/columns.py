"""Which columns of a data set hold what."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

from learnscope.training.errors import TrainError
from learnscope.training.settings.config import DatasetConfig

COUNTDOWN = {"nums", "target"}
ANSWERS = ("completion", "answer", "response")


@dataclass(frozen=True, slots=True)
class Columns:
    """The trainers' names, and what the data set calls them; empty for countdown problems."""

    names: dict[str, str] = field(default_factory=dict)

    @property
    def countdown(self) -> bool:
        return not self.names


def columns_of(there: Sequence[str], config: DatasetConfig) -> Columns:
    """Columns that are named in the configuration first, then the usual names."""
    named = {
        kind: getattr(config, f"{kind}_column")
        for kind in ("messages", "prompt", "completion", "text")
        if getattr(config, f"{kind}_column") is not None
    }
    for kind, column in named.items():
        if column not in there:
            near = difflib.get_close_matches(column, there, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TrainError(
                f"config.dataset.{kind}_column: there is no column {column!r}.{hint} There are: {', '.join(there)}."
            )
    if not named and set(there) >= COUNTDOWN:
        return Columns()
    for kind in ("messages", "prompt", "text"):
        if kind in named or (not named.keys() - {"completion"} and kind in there):
            found = {kind: named.get(kind, kind)}
            return Columns({**found, **_answers(there, named)} if kind == "prompt" else found)
    raise TrainError(
        f"the data set has the columns {', '.join(there)}, none of which is known: `prompt` with `completion`, `text`, "
        "`messages`, or `nums` with `target`; say which hold them, e.g. --config.dataset.prompt_column question"
    )


def _answers(there: Sequence[str], named: dict[str, str]) -> dict[str, str]:
    column = named.get("completion") or next((name for name in ANSWERS if name in there), None)
    return {} if column is None else {"completion": column}
