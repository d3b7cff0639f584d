"""Writing batches to a ledger, many small ones together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learnscope.core.handed import Examples
from learnscope.ledger import IdError, Ledger, LedgerError
from learnscope.ledger.sums import GroupSums
from learnscope.model.examples.fingerprint import fingerprints, input_sample
from learnscope.model.examples.groups import group_names
from learnscope.model.examples.scores import check_classes, example_scores
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.probes.examples.waiting_batches import BATCHES, DENSE, LOGITS, SMALL, Block, Kind, Waiting, kind_of
from learnscope.task import Task, describe

BLOCKS = 2
"""Kinds of batches that room is kept for: whole ones, and the rest at the end of an epoch."""


class LedgerWriter:
    """Takes batches into a ledger, and sums over all examples and groups beside it."""

    def __init__(self, ledger: Ledger, *, check_inputs: bool = True) -> None:
        self.ledger, self.check_inputs = ledger, check_inputs
        self.forgiving = False
        """Whether to go on without the ledger where its ids turn out to name different examples."""
        self.refused: str | None = None
        """Why there is nothing of single examples; sums over all presentations go on."""
        self.unscored = 0
        """Presentations without a target that counts."""
        self.classes: int | None = None
        """How many there are, where the user said so."""
        self._waiting: list[Waiting] = []
        self._joins: Kind = ()
        """What batches must have in common to be processed together."""
        self._blocks: dict[Kind, Block] = {}
        """Room for batches of kinds that came more than once."""
        self._kinds: deque[Kind | None] = deque(maxlen=2 * BLOCKS)
        """The last kinds that there was no room for."""
        self.reset_sums()

    def reset_sums(self) -> None:
        """Start new sums; the ledger is kept."""
        self.all, self.groups = GroupSums(), GroupSums()
        self.changed = False
        """Whether anything was taken in since."""

    def add(self, batch: Examples, epoch: int, grand: Tensor | None = None) -> None:
        """A batch that was presented in `epoch`; `grand` are gradient norms, where they were computed."""
        ids, z, y, x = batch.ids, batch.logits, batch.targets, batch.inputs
        usual = grand is None and batch.groups is None
        if usual and self.add_alike(ids, z, y, x, epoch):
            return
        joins = self._add(batch, epoch, grand)
        kind = kind_of(ids, z, y, x) if usual else None
        if kind is not None and kind in self._kinds:
            while len(self._blocks) >= BLOCKS:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[kind] = Block(joins, ids, z, y, x if self.check_inputs else None)
        self._kinds.append(kind)

    def add_alike(
        self, ids: Any, logits: Any, targets: Any, inputs: Any, epoch: Any, *, only_wait: bool = False
    ) -> bool:
        """The same for a batch of tensors like one before in all that is checked; False for any other.

        With `only_wait` also for one that could not wait, as others would have to be written first.
        """
        kind = kind_of(ids, logits, targets, inputs)
        block = None if kind is None else self._blocks.get(kind)
        if block is None or type(epoch) is not int or epoch < 0:
            return False
        joins = block.joined(epoch)
        if only_wait and self._waiting and joins != self._joins:
            return False
        self._join(joins)
        batch = block.put(ids, logits, targets, inputs if self.check_inputs else None)
        if batch is None:  # full of batches that wait
            return False
        if only_wait:
            self._waiting.append(batch)  # no more than there is room for
        else:
            self._wait(batch)
        return True

    def _add(self, batch: Examples, epoch: int, grand: Tensor | None) -> Kind:
        """Any batch, checked and copied; what it has in common with others that it can be processed with."""
        ids, z, y = _integer_ids(batch.ids), batch.logits, batch.targets
        size = z.shape[0] if z.ndim else None
        if ids.ndim != 1 or ids.shape[0] != size:
            raise ValueError(
                f"ids of shape {list(ids.shape)} were given for logits of shape {list(z.shape)}: one id an example"
            )
        check_classes(z, y)
        groups = None if batch.groups is None else group_names(batch.groups, size)
        sample, unsampled = self._sample(batch.inputs, size)
        inputs = None if sample is None else (sample.shape[1:], sample.dtype, unsampled)
        joins = (
            ids.dtype, z.shape[1:], z.dtype, z.device, y.shape[1:], y.dtype, inputs, grand is None, groups is None,
        )  # fmt: skip
        self._join((epoch, *joins))
        z, y = z.detach(), y.detach()
        copies = (z, y) if z.numel() >= LOGITS else (z.clone(), y.clone())
        self._wait(Waiting(ids.clone(), *copies, sample, unsampled, grand, groups))
        return joins

    def _join(self, joins: Kind) -> None:
        """Write what waits, if it cannot be processed together with batches like these."""
        if self._waiting and joins != self._joins:
            self.flush()
        self._joins = joins

    def _wait(self, batch: Waiting) -> None:
        self._waiting.append(batch)
        if len(self._waiting) >= BATCHES or len(self._waiting) * batch.logits.numel() >= LOGITS:
            self.flush()

    def _sample(self, inputs: Any, size: int | None) -> tuple[Tensor | None, bool]:
        """A copied sample that identifies the inputs, or small inputs as they are; and whether it is the latter."""
        if inputs is None or not self.check_inputs:
            return None, False
        small = isinstance(inputs, Tensor) and inputs.ndim > 1 and inputs.numel() <= SMALL and inputs.layout is DENSE
        # a copy in either case: a buffer that NumPy fills anew does not tell torch that it was written
        sample = inputs.detach().clone() if small else input_sample(inputs)
        if sample is not None and sample.shape[0] != size:
            raise ValueError(f"inputs of {sample.shape[0]} examples were given for {size} ids")
        return sample, small

    def flush(self) -> None:
        """Bring what waits into the ledger; a batch that is refused changes nothing, and the others still count."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._write(waiting)
        except (TypeError, ValueError):
            self._blocks = {}  # what goes on waiting is still in them
            if len(waiting) == 1:
                raise
            for place in range(len(waiting)):
                self._waiting = waiting[place + 1 :]  # they go on waiting if this one is refused
                self._write(waiting[place : place + 1])
        else:
            for block in self._blocks.values():
                block.used = 0

    def _write(self, batches: list[Waiting]) -> None:
        ids, logits, targets, sample, grand = (
            _joined([getattr(batch, name) for batch in batches])
            for name in ("ids", "logits", "targets", "sample", "grand")
        )
        scores = example_scores(logits, targets)
        if self.classes is not None and logits.ndim <= 2:
            check_num_classes(self.classes, int(scores.target.max(initial=0)))
        scored = scores.positions > 0
        sample = input_sample(sample) if batches[0].unsampled else sample
        checks = None if sample is None else fingerprints(sample).numpy()
        norms = None if grand is None else grand.cpu().double().numpy()
        if not scored.all():
            self.unscored += int((~scored).sum())
            scores, ids = scores.where(scored), ids.cpu()[torch.from_numpy(scored)]
            checks, norms = (None if a is None else a[scored] for a in (checks, norms))
        self._update(
            ids.cpu().numpy(), p_gold=scores.p_gold, correct=scores.correct, margin=scores.margin, loss=scores.loss,
            el2n=scores.el2n, target=scores.target, predicted=scores.predicted, checksum=checks, grand=norms,
            epoch=self._joins[0],
        )  # fmt: skip
        self.changed = True
        values: dict[str, Any] = {"correct": scores.correct, "p_gold": scores.p_gold, "loss": scores.loss}
        self.all.add("all", **values)
        named = [batch.groups for batch in batches if batch.groups is not None]
        if named:
            self.groups.add(np.concatenate(named)[scored], **values)
        elif logits.ndim <= 2:  # of several positions, the target is a number that stands for them
            self.groups.add(scores.target, **values)

    def _update(self, ids: NDArray[Any], **scores: Any) -> None:
        if self.refused is not None:
            return
        try:
            self.ledger.update(ids, **scores)
        except IdError as error:
            if not self.forgiving:
                raise
            self.give_up(str(error))

    def give_up(self, reason: str) -> None:
        """Forget all examples: what there is of them so far is mixed up, too."""
        self.refused, self.ledger = reason, self.ledger.emptied()


@torch.no_grad()
def presentations(model: nn.Module, task: Task, batches: Iterable[Any]) -> Iterator[Examples]:
    """Run the model in eval mode over data in order, and leave it as it was: every example with its id.

    The id is that which the batch carries, or else the example's place in the data.
    """
    device, done = model_device(model), 0
    with guard(model):
        for batch in batches:
            moved = task.to(batch, device)
            logits = task.logits(model, moved)
            targets = task.aligned_targets(model, moved, logits)
            if targets is None:
                raise ValueError(f"the data have no targets, and examples are followed by them: {describe(batch)}")
            ids, size = task.ids(batch), task.size(batch)
            ids = torch.arange(done, done + size) if ids is None else ids
            yield Examples(ids, logits, targets, batch, task.groups(batch))
            done += size


def check_num_classes(num_classes: int, highest: int) -> None:
    """Refuse a class beyond `num_classes`."""
    if highest >= num_classes:
        raise ValueError(
            f"num_classes={num_classes}, but there is class {highest} among the targets: say how many there are, or "
            "leave it out"
        )


def _integer_ids(values: Any) -> Tensor:
    try:
        ids = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # text, None, numbers beyond 64 bits
        ids = None
    if ids is not None and not ids.numel():
        return ids.long()
    if ids is None or ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        kind = "of another kind, such as text" if ids is None else str(ids.dtype).removeprefix("torch.")
        raise LedgerError(
            f"ids are {kind}: they must be whole numbers that fit 64 bits. Number the examples, as "
            "learnscope.IndexedDataset does"
        )
    return ids


def _joined(parts: list[Any]) -> Any:
    """Tensors as one; None if they all are."""
    return parts[0] if len(parts) == 1 or parts[0] is None else torch.cat(parts)
