"""What happens to every training example, followed by its id."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from learnscope.ledger import IdError, Ledger
from learnscope.ledger.sampling import Sample
from learnscope.model.example_scores import example_scores
from learnscope.moment import Moment
from learnscope.probing import At, Probe
from learnscope.record import Column, Measurement, Table

BATCHES, LOGITS = 32, 2**18
"""Batches, and logits, looked at together: one by one, small batches would cost several times as much."""
_COLUMN = "column/"
Handed = tuple[Tensor, Tensor, Tensor]


class ExampleLedger(Probe):
    """Every example over its presentations, from the loop's own logits: `w.examples(ids, logits, targets)`.

    Ids must belong to the examples (`learnscope.IndexedDataset` gives them some): a position in a shuffled loader is
    refused as soon as targets tell. Targets are classes, aligned with the logits: a causal language model's are handed
    over shifted, `w.examples(ids, logits[:, :-1], labels[:, 1:])`. It measures at `w.end_epoch()`, and at the end.

    | name | kind | meaning |
    |---|---|---|
    | `examples`, `presentations`, `forgetting_events` | model | so far; what they are stands at `Ledger` |
    | `nonfinite`, `untracked`, `unscored` | model | presentations with a score that is not finite; of examples beyond \
`track`; without a target that counts |
    | `learned` | model | share of the examples that were correct at their last presentation |
    | `never_learned`, `unforgettable` | model | shares: never correct; correct at some time and not forgotten since |
    | `mean_<score>`, `<score>` | model | mean and quantiles (label `quantile`) over the examples of `confidence`, \
`variability`, `aum`, `el2n` (mean of each) and `cumulative_loss` |

    Arrays: the whole ledger, every `keep_every` epochs and at the end; `Ledger.from_arrays` takes them back.
    """

    at: At = "epoch"
    track: int | None = None
    sample: Sample = "first"
    total: int | None = None
    """The data set's size, for samples other than the first."""
    seed: int = 0
    check_ids: bool = True
    keep_every: int = 10
    needs: ClassVar[frozenset[str]] = frozenset({"examples"})
    reads_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at != "epoch":
            raise ValueError(
                f"ExampleLedger(at={self.at!r}): it takes examples in at every step and measures at='epoch'"
            )
        if isinstance(self.keep_every, bool) or not isinstance(self.keep_every, int) or self.keep_every < 1:
            raise ValueError(f"ExampleLedger(keep_every={self.keep_every!r}): a whole number of epochs from 1")
        self._new_ledger()

    def prepare(self, moment: Moment) -> None:
        state = moment.state
        if "_refused" in state:
            return
        state.setdefault("since", moment.step)
        if state.get("_epoch", moment.epoch) != moment.epoch:
            self._take_in(state)
        state["_epoch"] = moment.epoch
        waiting: list[Handed] = state.setdefault("_waiting", [])
        for ids, logits, targets in moment.all_examples:
            handed = (torch.as_tensor(ids), logits, targets)
            if handed[0].ndim != 1 or len(handed[0]) != len(logits):
                raise ValueError(
                    f"w.examples was given ids of shape {list(handed[0].shape)} for logits of shape "
                    f"{list(logits.shape)}: one id an example"
                )
            if waiting and not _alike(waiting[-1], handed):
                self._take_in(state)
            waiting.append(handed)
        if len(waiting) >= BATCHES or len(waiting) * waiting[-1][1].numel() >= LOGITS:
            self._take_in(state)

    def measure(self, moment: Moment) -> Measurement | None:
        state = moment.state
        self._take_in(state)
        if "_refused" in state:
            raise IdError(state["_refused"])
        ledger = self._ledger(state)
        ledger.trim()
        tables = [_table(ledger, state)] if state.get("measured") != moment.step else []
        ended = moment.phase != "epoch" or ((moment.epoch or 0) + 1) % self.keep_every == 0
        keep = ended and state.get("kept") != moment.step and len(ledger) > 0
        state["measured"] = moment.step
        if keep:
            state["kept"] = moment.step
        elif not tables:
            return None
        return Measurement(tables, ledger.arrays() if keep else {}, {"since_step": state.get("since")})

    def settle(self, state: dict[str, Any]) -> None:
        if "_refused" in state or "since" not in state:
            return
        self._take_in(state)
        ledger = self._ledger(state)
        state |= {f"{_COLUMN}{name}": torch.from_numpy(array) for name, array in ledger.arrays().items()}
        state["untracked"] = ledger.untracked

    def _new_ledger(self) -> Ledger:
        return Ledger(**self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "track": self.track, "sample": self.sample, "examples": self.total, "seed": self.seed,
            "check_ids": self.check_ids,
        }  # fmt: skip

    def _ledger(self, state: dict[str, Any]) -> Ledger:
        """The live ledger, made from the saved state if there is one."""
        if "_ledger" not in state:
            saved = {key.removeprefix(_COLUMN): state[key].numpy() for key in state if key.startswith(_COLUMN)}
            state["_ledger"] = Ledger.from_arrays(saved, **self._settings()) if saved else self._new_ledger()
            state["_ledger"].untracked = state.get("untracked", 0)
        for key in [key for key in state if key.startswith(_COLUMN)]:
            del state[key]  # a copy of what the ledger holds
        ledger: Ledger = state["_ledger"]
        return ledger

    def _take_in(self, state: dict[str, Any]) -> None:
        """Bring the batches that wait into the ledger."""
        waiting: list[Handed] = state.get("_waiting", [])
        if not waiting or "_refused" in state:
            return
        ids, logits, targets = (
            parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*waiting, strict=True)
        )
        waiting.clear()
        scores = example_scores(logits, targets)
        there = scores.positions > 0
        state["unscored"] = state.get("unscored", 0) + int((~there).sum())
        try:
            self._ledger(state).update(
                ids.cpu().numpy()[there], p_gold=scores.p_gold[there], correct=scores.correct[there],
                margin=scores.margin[there], loss=scores.loss[there], el2n=scores.el2n[there],
                target=scores.target[there], epoch=state.get("_epoch") or 0,
            )  # fmt: skip
        except IdError as error:  # what is in the ledger so far is of mixed examples, too
            state["_refused"] = str(error)
            state.pop("_ledger")
            state.pop("since")
            raise


def _alike(one: Handed, other: Handed) -> bool:
    """Whether two batches can be joined."""
    return all(
        a.shape[1:] == b.shape[1:] and a.dtype == b.dtype and a.device == b.device
        for a, b in zip(one, other, strict=True)
    )


def _table(ledger: Ledger, state: dict[str, Any]) -> Table:
    columns = [Column("untracked", [ledger.untracked]), Column("unscored", [state.get("unscored", 0)])]
    for name, value in ledger.summary().items():
        if isinstance(name, tuple):
            columns.append(Column(name[0], [value], {"quantile": name[1]}))
        else:
            columns.append(Column(name, [value]))
    return Table("model", ["model"], columns)
