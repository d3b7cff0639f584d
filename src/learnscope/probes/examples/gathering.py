"""Batches on their way into a ledger: many small ones are looked at together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learnscope.core.handed import Examples
from learnscope.ledger import Ledger, LedgerError
from learnscope.ledger.sums import GroupSums
from learnscope.model.examples.fingerprint import fingerprints, input_sample
from learnscope.model.examples.groups import group_names
from learnscope.model.examples.scores import check_classes, example_scores
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Task, describe

BATCHES, LOGITS = 32, 2**18
"""Batches, and logits, looked at together: one by one, small batches would cost several times as much."""
SMALL = 2**14
"""Entries of inputs up to which copying all of them is cheaper than taking a sample at every step."""
_DENSE = torch.strided


class _Waiting(NamedTuple):
    """Copies: what the loop handed over may be overwritten by its next step."""

    ids: Tensor
    logits: Tensor
    targets: Tensor
    sample: Tensor | None
    whole: bool
    """Whether `sample` is all of the inputs, of which a sample is still to be taken."""
    grand: Tensor | None
    groups: NDArray[Any] | None


class Gathering:
    """Takes batches into a ledger, and sums over all examples and groups beside it."""

    def __init__(self, ledger: Ledger, *, check_inputs: bool = True) -> None:
        self.ledger, self.check_inputs = ledger, check_inputs
        self.all, self.groups = GroupSums(), GroupSums()
        self.unscored = 0
        """Presentations without a target that counts."""
        self.fresh = False
        """Whether anything was taken in since sums began anew."""
        self.classes: int | None = None
        """How many there are, where that was announced."""
        self._waiting: list[_Waiting] = []
        self._joins: tuple[Any, ...] = ()
        """What batches must have in common to be looked at as one."""
        self._kind: tuple[Any, ...] | None = None
        """What the last batch was like, if it was of the most usual kind."""

    def add(self, given: Examples, epoch: int, grand: Tensor | None = None) -> None:
        """A batch that was presented in `epoch`; `grand` are gradient norms, where they were computed."""
        ids, z, y, x = given.ids, given.logits, given.targets, given.inputs
        usual = grand is None and given.groups is None
        if usual and self.add_alike(ids, z, y, x, epoch):
            return
        self._kind = None
        self._add(given, epoch, grand)
        self._kind = _kind(ids, z, y, x, epoch) if usual else None

    def add_alike(self, ids: Any, logits: Any, targets: Any, inputs: Any, epoch: Any) -> bool:
        """The same for a batch of tensors like the one before in all that is checked; False for any other."""
        if self._kind is None or not self._waiting or _kind(ids, logits, targets, inputs, epoch) != self._kind:
            return False
        copy = None if inputs is None or not self.check_inputs else inputs.detach().clone()
        parts = ids.clone(), logits.detach().clone(), targets.clone()
        self._wait(_Waiting(*parts, copy, copy is not None, None, None))
        return True

    def _add(self, given: Examples, epoch: int, grand: Tensor | None) -> None:
        ids, z, y = _whole(given.ids), given.logits, given.targets
        size = z.shape[0] if z.ndim else None
        if ids.ndim != 1 or ids.shape[0] != size:
            raise ValueError(
                f"ids of shape {list(ids.shape)} were given for logits of shape {list(z.shape)}: one id an example"
            )
        check_classes(z, y)
        groups = None if given.groups is None else group_names(given.groups, size)
        sample, whole = self._sample(given.inputs, size)
        seen = None if sample is None else (sample.shape[1:], sample.dtype, whole)
        joins = (
            epoch, ids.dtype, z.shape[1:], z.dtype, z.device, y.shape[1:], y.dtype, seen, grand is None, groups is None,
        )  # fmt: skip
        if self._waiting and joins != self._joins:
            self.take_in()
        self._joins = joins
        z, y = z.detach(), y.detach()
        kept = (z, y) if z.numel() >= LOGITS else (z.clone(), y.clone())
        self._wait(_Waiting(ids.clone(), *kept, sample, whole, grand, groups))

    def _wait(self, batch: _Waiting) -> None:
        self._waiting.append(batch)
        if len(self._waiting) >= BATCHES or len(self._waiting) * batch.logits.numel() >= LOGITS:
            self.take_in()

    def _sample(self, inputs: Any, size: int | None) -> tuple[Tensor | None, bool]:
        """A copy of what tells inputs apart, or of small inputs as they are, and whether it is the latter."""
        if inputs is None or not self.check_inputs:
            return None, False
        small = isinstance(inputs, Tensor) and inputs.ndim > 1 and inputs.numel() <= SMALL and inputs.layout is _DENSE
        # a copy in either case: a buffer that NumPy fills anew does not tell torch that it was written
        sample = inputs.detach().clone() if small else input_sample(inputs)
        if sample is not None and sample.shape[0] != size:
            raise ValueError(f"inputs of {sample.shape[0]} examples were given for {size} ids")
        return sample, small

    def take_in(self) -> None:
        """Bring what waits into the ledger; a batch that is refused changes nothing, and the others still count."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._take(waiting)
        except (TypeError, ValueError):
            if len(waiting) == 1:
                raise
            self._one_by_one(waiting)

    def _one_by_one(self, waiting: list[_Waiting]) -> None:
        for place, one in enumerate(waiting):
            try:
                self._take([one])
            except (TypeError, ValueError):
                self._waiting = waiting[place + 1 :]
                raise

    def _take(self, waiting: list[_Waiting]) -> None:
        ids, logits, targets, sample, grand = (
            _joined([getattr(one, name) for one in waiting]) for name in ("ids", "logits", "targets", "sample", "grand")
        )
        if waiting[0].whole:
            sample = input_sample(sample)
        assert ids is not None
        assert logits is not None
        assert targets is not None
        scores = example_scores(logits, targets)
        if self.classes is not None and logits.ndim <= 2:
            check_announced(self.classes, int(scores.target.max(initial=0)))
        there = scores.positions > 0
        checks = None if sample is None else fingerprints(sample).numpy()
        norms = None if grand is None else grand.cpu().double().numpy()
        if not there.all():
            self.unscored += int((~there).sum())
            scores, ids = scores.where(there), ids.cpu()[torch.from_numpy(there)]
            checks, norms = (None if a is None else a[there] for a in (checks, norms))
        self.ledger.update(
            ids.cpu().numpy(), p_gold=scores.p_gold, correct=scores.correct, margin=scores.margin, loss=scores.loss,
            el2n=scores.el2n, target=scores.target, checksum=checks, grand=norms, epoch=self._joins[0],
        )  # fmt: skip
        self.fresh = True
        values: dict[str, Any] = {"correct": scores.correct, "p_gold": scores.p_gold, "loss": scores.loss}
        self.all.add("all", **values)
        named = [one.groups for one in waiting if one.groups is not None]
        if named:
            self.groups.add(np.concatenate(named)[there], **values)
        elif logits.ndim <= 2:  # of several positions, the target is a number that stands for them
            self.groups.add(scores.target, **values)

    def begin_anew(self) -> None:
        """Sums from here on; the ledger goes on."""
        self.all, self.groups, self.fresh = GroupSums(), GroupSums(), False


@torch.no_grad()
def presentations(model: nn.Module, task: Task, batches: Iterable[Any]) -> Iterator[Examples]:
    """Run the model in eval mode over data in order, and leave it as it was: every example with its id.

    The id is that which the batch carries, or else the example's place in the data.
    """
    device, seen = model_device(model), 0
    with guard(model):
        for batch in batches:
            here = task.to(batch, device)
            logits = task.logits(model, here)
            targets = task.aligned_targets(model, here, logits)
            if targets is None:
                raise ValueError(f"the data have no targets, and examples are followed by them: {describe(batch)}")
            ids, size = task.ids(batch), task.size(batch)
            yield Examples(torch.arange(seen, seen + size) if ids is None else ids, logits, targets, batch,
                           task.groups(batch))  # fmt: skip
            seen += size


def check_announced(num_classes: int, highest: int) -> None:
    """Refuse a class beyond those that were announced."""
    if highest >= num_classes:
        raise ValueError(
            f"num_classes={num_classes}, but there is class {highest} among the targets: say how many there are, or "
            "leave it out"
        )


def _kind(ids: Any, z: Any, y: Any, x: Any, epoch: Any) -> tuple[Any, ...] | None:
    """All that is checked of a small batch of tensors; None for any other, which is looked at each time."""
    if not (type(ids) is type(z) is type(y) is Tensor) or z.ndim != 2 or y.ndim != 1 or z.numel() >= LOGITS:
        return None
    seen = None
    if x is not None:
        if type(x) is not Tensor or x.ndim < 2 or x.layout is not _DENSE or x.numel() > SMALL:
            return None
        seen = x.shape, x.dtype
    return epoch, ids.shape, ids.dtype, z.shape, z.dtype, z.device, y.shape, y.dtype, seen


def _whole(given: Any) -> Tensor:
    """Ids as a tensor of whole numbers."""
    try:
        ids = torch.as_tensor(given)
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


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    if not there:
        return None
    return there[0] if len(there) == 1 else torch.cat(there)
