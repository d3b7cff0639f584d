"""Re-running only what comes after a changed weight: blocks before it return their recorded outputs.

Exact, bit for bit: outputs are kept with their memory layout, and before skipping is relied on, it is tested that the
model's outputs stay the same. A model that cannot be cut like this runs in full, and `reason` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree  # transformers registers its outputs there, and nowhere else

from learnscope.model.outputs.blocks import are_stateless, find_blocks, find_inner
from learnscope.model.outputs.recorded import Output, copied, repeated, replay, same, same_bits
from learnscope.model.outputs.repeated import Change, joined_leaves, part_of, shape_of

T = TypeVar("T")
_Forward = Callable[..., Any]
_KEEPABLE = (Tensor, bool, int, float, str, type(None))


class Suffix:
    """Records the outputs of a model's blocks over fixed batches, for later passes that skip the first blocks.

    Only weights named to a later pass may have changed, and it must run the same batches. `reason` is why no block can
    be skipped, or None. Blocks are those of known stacks (`h.0`, `layers.0`, `encoder.block.0`), or the children of a
    `Sequential`; each must run once per forward, always in the same order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._blocks = find_blocks(model)
        self._parts = {part: m for name, block in self._blocks.items() for part, m in find_inner(name, block).items()}
        self._order: list[str] = []
        self._outputs: dict[str, list[Output]] = {}
        self._shapes: dict[str, list[list[torch.Size | None]]] = {}
        """For each block and batch, the shapes of the tensors that it is called with."""
        self._inner: dict[str, list[str]] = {}
        """For each block, its parts that run before another of its parts, such as the attention before the MLP."""
        self.reason: str | None = None if self._blocks else "its blocks are not known"
        self.apart: str | None = None
        """Why variants are not run together, where that is known."""
        self._trusted = False

    def record(self, run: Callable[[Any], T], batches: Sequence[Any]) -> list[T]:
        """The result of `run` for each batch, in one pass that keeps the output of every block."""
        results: list[T] = []
        calls: list[list[str]] = []
        modules = {**self._blocks, **self._parts} if self.reason is None else {}
        self._outputs, self._shapes = {name: [] for name in modules}, {name: [] for name in self._blocks}
        with self._replaced({name: partial(self._keep, name, m.forward, calls) for name, m in modules.items()}):
            for batch in batches:
                calls.append([])
                results.append(run(batch))
        if self.reason is None:
            self._set_order(calls)
        self._forget_if_useless()
        return results

    def _set_order(self, calls: Sequence[Sequence[str]]) -> None:
        """The order of the blocks, and of their parts, without the last, where that is always the same."""
        blocks = [[name for name in names if name in self._blocks] for names in calls]
        self.reason = _irregular(blocks, list(self._blocks))
        self._order = blocks[0]
        for block in self._order:
            parts = [name for name in self._parts if name.startswith(f"{block}.")]
            ran = [[name for name in names if name in parts] for names in calls]
            self._inner[block] = ran[0][:-1] if _irregular(ran, parts) is None else []
        needed = {*self._blocks, *(part for parts in self._inner.values() for part in parts)}
        self._outputs = {name: outputs for name, outputs in self._outputs.items() if name in needed}

    def check(self, run: Callable[[], Tensor], expected: Tensor) -> None:
        """Test on the first batch, which `run` runs, that no block needs an earlier one to run; if one does, skip none.

        This finds state that a block leaves behind for a later one, which outputs do not show. For any two blocks there
        is a pass that skips the earlier and runs the later, whose output must not change. Blocks are numbered in
        binary, and there is one pass per digit, which skips the blocks that have a 0 there.
        """
        if are_stateless(self.model, self._blocks.values()):
            return  # they leave no state behind: the test suite tries every cut of these
        count = len(self._order)
        parts = [part for parts in self._inner.values() for part in parts]
        digits = [
            [block for n, block in enumerate(self._order) if not n >> digit & 1]
            for digit in range((count - 1).bit_length())
        ]
        for names in [parts, self._order, *digits]:
            differ: list[str] = []
            try:
                with self._skipping(names, differ):
                    same = same_bits(run(), expected) and not differ
            except (RuntimeError, KeyError, IndexError, TypeError, AttributeError) as error:
                same = False  # for instance state that a skipped block should have left behind
                self.reason = f"the model does not run without some of its blocks ({error})"
            if not same:
                self.reason = self.reason or "its outputs change when some of its blocks do not run"
                break
        self._forget_if_useless()

    def begins_at(self, names: Iterable[str]) -> int:
        """How many blocks can be skipped when the parameters with these names have changed."""
        if self.reason is not None:
            return 0
        return min((self._first_readers.get(name, 0) for name in names), default=len(self._order))

    @cached_property
    def _first_readers(self) -> dict[str, int]:
        """For each parameter the first block that holds it or one tied to it; 0 if one of them is outside of blocks."""
        # outside of blocks (an embedding or a head): when it runs is not known
        return {name: min(number or 0 for number in holders) for name, holders in self._holders.items()}

    @contextmanager
    def after(self, names: Iterable[str]) -> Iterator[None]:
        """A pass over the batches that skips the blocks before the parameters with these names."""
        changed = list(names)
        cut = self.begins_at(changed)
        skipped = self._order[:cut]
        if cut < len(self._order) and all(name.startswith(f"{self._order[cut]}.") for name in changed):
            # of the first block that runs, the parts before the change are skipped too
            skipped = [*skipped, *self._parts_before(self._order[cut], changed)]
        with self._skipping(skipped):
            yield

    def _parts_before(self, block: str, changed: Sequence[str]) -> list[str]:
        parts = self._inner[block]
        hit = (n for n, part in enumerate(parts) if any(name.startswith(f"{part}.") for name in changed))
        return parts[: min(hit, default=len(parts))]

    def only_block(self, names: Iterable[str]) -> int | None:
        """The one block that holds the parameters with these names and all that are tied to them, if there is one."""
        if self.reason is not None:
            return None
        holders = {holder for name in names for holder in self._holders.get(name, {None})}
        return holders.pop() if len(holders) == 1 else None

    @cached_property
    def _holders(self) -> dict[str, set[int | None]]:
        """For each parameter the blocks that hold it or one tied to it; None stands for what is outside of blocks."""
        named = list(self.model.named_parameters(remove_duplicate=False))
        at: dict[int, set[int | None]] = {}
        for name, parameter in named:
            number = next((n for n, block in enumerate(self._order) if name.startswith(f"{block}.")), None)
            at.setdefault(parameter.untyped_storage().data_ptr(), set()).add(number)
        return {name: at[parameter.untyped_storage().data_ptr()] for name, parameter in named}

    def names_in(self, number: int) -> list[str]:
        """The matrices of a block that no other reads."""
        start = f"{self._order[number]}."
        matrices = [name for name, p in self.model.named_parameters() if name.startswith(start) and p.ndim > 1]
        return [name for name in matrices if self._holders[name] == {number}]

    def is_known(self) -> bool:
        """Whether variants of these blocks may be run together: tried for this model, or known of its type."""
        self._trusted = self._trusted or are_stateless(self.model, self._blocks.values())
        return self._trusted

    def trust(self) -> None:
        self._trusted = True

    @contextmanager
    def together(self, changes: Sequence[Change], sizes: Sequence[int]) -> Iterator[None]:
        """A pass over the recorded batches, each repeated for every change, one after the other.

        All changes are in one block (`only_block`). It runs once for each, with its weights; blocks before it return
        what was recorded, and blocks after it run once, with all of them as one larger batch. `sizes` are the examples
        of each batch.
        """
        [cut] = {self.only_block(change.names) for change in changes}
        assert cut is not None
        block, copies = self._order[cut], len(changes)
        forwards: dict[str, _Forward] = {
            name: partial(replay, name, repeated(self._outputs[name], sizes, copies)) for name in self._order[:cut]
        }
        own = self._blocks[block].forward
        forwards[block] = partial(self._run_each, block, own, changes, enumerate(sizes))
        with self._replaced(forwards):
            yield

    def _run_each(
        self, block: str, forward: _Forward, changes: Sequence[Change], places: Iterator[tuple[int, int]], /,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """The block with each change in turn on its part of the repeated batch; the outputs as one batch."""
        place, size = next(places)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        outputs: list[Output] = []
        for number, change in enumerate(changes):
            own = [part_of(leaf, shape, number) for leaf, shape in zip(leaves, self._shapes[block][place], strict=True)]
            own_args, own_kwargs = pytree.tree_unflatten(own, spec)
            known = {part: iter([self._outputs[part][place]]) for part in self._parts_before(block, change.names)}
            with (
                change.applied(),
                self._exchanged({part: partial(replay, part, output) for part, output in known.items()}),
            ):
                outputs.append(pytree.tree_flatten(forward(*own_args, **own_kwargs)))
        return pytree.tree_unflatten(joined_leaves([leaves for leaves, _ in outputs], size), outputs[0][1])

    @contextmanager
    def _skipping(self, names: Sequence[str], differ: list[str] | None = None) -> Iterator[None]:
        """A pass over all recorded batches in which these blocks return their recorded outputs.

        With `differ` over the first batch: the other blocks whose output is not the recorded one are added to it.
        """
        recorded = {name: iter(self._outputs[name]) for name in names}
        forwards: dict[str, _Forward] = {name: partial(replay, name, outputs) for name, outputs in recorded.items()}
        if differ is not None:
            others = [name for name in self._order if name not in recorded]
            forwards |= {name: partial(self._compare, name, self._blocks[name].forward, differ) for name in others}
        with self._replaced(forwards):
            yield
        if differ is None and any(next(outputs, None) is not None for outputs in recorded.values()):
            raise RuntimeError("the pass ended before all batches that were recorded: run the same batches again")

    @contextmanager
    def _replaced(self, forwards: Mapping[str, _Forward]) -> Iterator[None]:
        """The model with other forwards of some blocks, and without the key-value cache, which every block writes."""
        with ExitStack() as stack:
            for config in self._configs:
                if getattr(config, "use_cache", False):
                    stack.callback(setattr, config, "use_cache", config.use_cache)
                    config.use_cache = False
            stack.enter_context(self._exchanged(forwards))
            yield

    @cached_property
    def _configs(self) -> list[Any]:
        return list({id(c): c for c in (getattr(m, "config", None) for m in self.model.modules())}.values())

    @contextmanager
    def _exchanged(self, forwards: Mapping[str, _Forward]) -> Iterator[None]:
        with ExitStack() as stack:
            for name, forward in forwards.items():
                attributes = vars(self._blocks[name] if name in self._blocks else self._parts[name])
                stack.callback(attributes.update, {"forward": attributes["forward"]} if "forward" in attributes else {})
                stack.callback(attributes.pop, "forward")
                attributes["forward"] = forward
            yield

    def _compare(self, name: str, forward: _Forward, differ: list[str], /, *args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        leaves, spec = pytree.tree_flatten(output)
        recorded, recorded_spec = self._outputs[name][0]
        if spec != recorded_spec or not all(map(same, leaves, recorded)):
            differ.append(name)
        return output

    def _keep(self, name: str, forward: _Forward, calls: list[list[str]], /, *args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        calls[-1].append(name)
        leaves, spec = pytree.tree_flatten(output)
        foreign = next((leaf for leaf in leaves if not isinstance(leaf, _KEEPABLE)), None)
        if foreign is not None:
            self.reason = self.reason or f"{name} returns a {type(foreign).__name__}, which cannot be recorded"
        if self.reason is None:
            self._outputs[name].append(([copied(leaf) for leaf in leaves], spec))
        if name in self._shapes:
            self._shapes[name].append([shape_of(leaf) for leaf in pytree.tree_leaves((args, kwargs))])
        return output

    def _forget_if_useless(self) -> None:
        if self.reason is not None:
            self._outputs, self._order, self._inner, self._shapes = {}, [], {}, {}


def _irregular(calls: Sequence[Sequence[str]], blocks: Sequence[str]) -> str | None:
    """Why these calls, one list per batch, are not each block once and always in the same order; None if they are."""
    counts = Counter(calls[0])
    for name in blocks:
        if counts[name] != 1:
            return f"{name} runs {counts[name]} times in a forward"
    return (
        None if all(names == calls[0] for names in calls) else "the order of its blocks is not the same for every batch"
    )
