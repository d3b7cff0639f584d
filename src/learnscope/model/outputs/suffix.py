"""Running again only what comes after a changed weight: blocks before it give back what they gave before.

Exact, bit for bit: what a block gave is kept as it lies in memory, and whether the outputs come out the same without
it running is tried before that is relied upon. What cannot be cut that way runs in full, and says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree  # transformers registers its outputs there, and nowhere else

from learnscope.model.outputs.blocks import find_blocks, find_inner, known_blocks

T = TypeVar("T")
_Kept = tuple[list[Any], Any]
"""What a block gave: its leaves, and how they were put together."""


class Suffix:
    """The outputs of a model's blocks in one pass over fixed batches, and passes that begin after some of them.

    It keeps every block's output for every batch: blocks × positions × width, in the model's dtype (`nbytes`). The
    weights must stay as they are but for what a pass is told of, and passes must go over the same batches.

    `reason` is why nothing can be left out, or None. Blocks are those of the resolver's stacks (`h.0`, `layers.0`,
    `encoder.block.0`), or else the children of a `Sequential`; they must each run once a forward, in one order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._blocks = find_blocks(model)
        self._order: list[str] = []
        self._outputs: dict[str, list[_Kept]] = {}
        self._first: dict[str, int] | None = None
        self._inner: dict[str, list[str]] = {}
        """Of each block what inside it runs before another part of it, such as its attention before its MLP."""
        self.reason: str | None = None if self._blocks else "its blocks are not known"

    @property
    def nbytes(self) -> int:
        """Memory that the outputs take."""
        kept = (leaf for calls in self._outputs.values() for leaves, _ in calls for leaf in leaves)
        return sum(_bytes(leaf) for leaf in kept if isinstance(leaf, Tensor))

    def record(self, run: Callable[[Any], T], batches: Sequence[Any]) -> list[T]:
        """What `run` gives for each batch, in one pass that keeps what every block gives on the way."""
        if self.reason is not None:
            with without_cache(self.model):
                return [run(batch) for batch in batches]
        given: list[T] = []
        calls: list[list[str]] = []
        inner = {name: part for at, block in self._blocks.items() for name, part in find_inner(at, block).items()}
        self._outputs = {name: [] for name in [*self._blocks, *inner]}
        with without_cache(self.model), ExitStack() as stack:
            for name, module in {**self._blocks, **inner}.items():
                stack.enter_context(replaced_forward(module, self._keeping(name, module.forward, calls)))
            for batch in batches:
                calls.append([])
                given.append(run(batch))
        blocks = [[name for name in each if name in self._blocks] for each in calls]
        self.reason = self.reason or _out_of_turn(blocks, list(self._blocks))
        self._order = blocks[0]
        self._keep_inner([[name for name in each if name in inner] for each in calls], list(inner))
        self._forget_if_useless()
        return given

    def check(self, run: Callable[[], Tensor], expected: Tensor) -> None:
        """Try on the first batch, which `run` runs, whether blocks depend on others having run; then all run in full.

        It finds what outputs do not show: a block that leaves something behind which a later one reads. For each two
        blocks there is a pass that leaves out the earlier and runs the later, whose output must be what it was: the
        number of the passes is the number of binary digits of the blocks', and each leaves out those with a 0 in one.
        """
        if known_blocks(self.model, self._blocks.values()):
            return  # they leave nothing behind: tests try every cut of these
        count = len(self._order)
        digits = [[n for n in range(count) if not n >> digit & 1] for digit in range((count - 1).bit_length())]
        inner = [part for parts in self._inner.values() for part in parts]
        for names in [inner, *([self._order[place] for place in places] for places in [list(range(count)), *digits])]:
            differ: list[str] = []
            try:
                run_again = set(self._order) - set(names)
                with self._leaving_out(names, whole=False), self._comparing(run_again, differ):
                    same = _same_bits(run(), expected) and not differ
            except (RuntimeError, KeyError, IndexError, TypeError, AttributeError) as error:
                same = False  # such as what a block should have left behind and did not
                self.reason = f"the model does not run without some of its blocks ({error})"
            if not same:
                self.reason = self.reason or "its outputs are others when some of its blocks do not run"
                break
        self._forget_if_useless()

    def begins_at(self, names: Iterable[str]) -> int:
        """How many blocks need not run again when the parameters of these names have changed."""
        if self.reason is not None:
            return 0
        if self._first is None:
            self._first = self._first_readers()
        return min((self._first.get(name, 0) for name in names), default=len(self._order))

    def _first_readers(self) -> dict[str, int]:
        """For every parameter the first block that holds it, or one it is tied to; 0 if it is held elsewhere too."""
        place = {block: number for number, block in enumerate(self._order)}
        first: dict[int, int] = {}
        named = list(self.model.named_parameters(remove_duplicate=False))
        for name, parameter in named:
            block = next((block for block in self._order if name.startswith(f"{block}.")), None)
            # an embedding or a head: when it runs is not known
            own = 0 if block is None else place[block]
            memory = parameter.untyped_storage().data_ptr()
            first[memory] = min(first.get(memory, own), own)
        return {name: first[parameter.untyped_storage().data_ptr()] for name, parameter in named}

    @contextmanager
    def after(self, names: Iterable[str]) -> Iterator[None]:
        """A pass over the batches in which blocks before the parameters of these names do not run."""
        changed = list(names)
        cut = self.begins_at(changed)
        with self._leaving_out([*self._order[:cut], *self._before(changed, cut)]):
            yield

    def _before(self, changed: Sequence[str], cut: int) -> list[str]:
        """What inside the first block that runs need not, since the change comes after it."""
        if not 0 <= cut < len(self._order):
            return []
        parts = self._inner.get(self._order[cut], [])
        within = [n for n, part in enumerate(parts) if any(name.startswith(f"{part}.") for name in changed)]
        alone = all(name.startswith(f"{self._order[cut]}.") for name in changed)
        return parts[: min(within, default=len(parts))] if alone else []

    @contextmanager
    def _leaving_out(self, blocks: Sequence[str], *, whole: bool = True) -> Iterator[None]:
        waiting = {name: iter(self._outputs[name]) for name in blocks}
        with without_cache(self.model), ExitStack() as stack:
            for name, calls in waiting.items():
                stack.enter_context(replaced_forward(self._module(name), _giving(name, calls)))
            yield
        if whole and any(next(calls, None) is not None for calls in waiting.values()):
            raise RuntimeError("the pass ended before all batches that were recorded: run the same batches again")

    @contextmanager
    def _comparing(self, names: Iterable[str], differ: list[str]) -> Iterator[None]:
        """Blocks that run, for the first batch: those whose outputs are not what they were are added to `differ`."""

        def compare(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                output = forward(*args, **kwargs)
                leaves, spec = pytree.tree_flatten(output)
                kept, kept_spec = self._outputs[name][0]
                if spec != kept_spec or not all(map(_same, leaves, kept)):
                    differ.append(name)
                return output

            return run

        with ExitStack() as stack:
            for name in names:
                stack.enter_context(replaced_forward(self._blocks[name], compare(name, self._blocks[name].forward)))
            yield

    def _keep_inner(self, calls: Sequence[Sequence[str]], inner: Sequence[str]) -> None:
        """By the order in which they ran; what ran last in its block, or not once in every pass, is of no use."""
        for block in self._order:
            parts = [name for name in inner if name.startswith(f"{block}.")]
            ran = [[name for name in each if name in parts] for each in calls]
            alike = _out_of_turn(ran, parts) is None
            self._inner[block] = ran[0][:-1] if alike else []
        kept = {name for parts in self._inner.values() for name in parts}
        self._outputs = {name: out for name, out in self._outputs.items() if name in self._blocks or name in kept}

    def _module(self, name: str) -> nn.Module:
        return self._blocks[name] if name in self._blocks else self.model.get_submodule(name)

    def _keeping(self, name: str, forward: Callable[..., Any], calls: list[list[str]]) -> Callable[..., Any]:
        def keep(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            calls[-1].append(name)
            leaves, spec = pytree.tree_flatten(output)
            foreign = next((leaf for leaf in leaves if not _can_be_kept(leaf)), None)
            if foreign is not None and self.reason is None:
                self.reason = f"{name} gives out a {type(foreign).__name__}, which cannot be kept"
            if self.reason is None:
                self._outputs[name].append(([_copied(leaf) for leaf in leaves], spec))
            return output

        return keep

    def _forget_if_useless(self) -> None:
        if self.reason is not None:
            self._outputs, self._order, self._inner = {}, [], {}


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """`module` with another `forward`, on this instance only; an own one that it had is put back."""
    own = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Configurations that say `use_cache` say no meanwhile: a cache of keys and values is written by every block."""
    configs = {
        id(config): config for module in model.modules() if (config := getattr(module, "config", None)) is not None
    }
    told = [config for config in configs.values() if getattr(config, "use_cache", False)]
    before = [config.use_cache for config in told]
    try:
        for config in told:
            config.use_cache = False
        yield
    finally:
        for config, value in zip(told, before, strict=True):
            config.use_cache = value


def _giving(name: str, calls: Iterator[_Kept]) -> Callable[..., Any]:
    def give(*_args: Any, **_kwargs: Any) -> Any:
        kept = next(calls, None)
        if kept is None:
            raise RuntimeError(f"{name} runs more often than it was recorded: run the same batches again")
        leaves, spec = kept
        # copies: what comes next may write into its input
        return pytree.tree_unflatten([_copied(leaf) for leaf in leaves], spec)

    return give


def _out_of_turn(calls: Sequence[Sequence[str]], blocks: Sequence[str]) -> str | None:
    """Why these calls, a list for each batch, are not every block once and always in the same order."""
    counts = Counter(calls[0])
    for name in blocks:
        if counts[name] != 1:
            return f"{name} runs {counts[name]} times in a forward"
    return None if all(each == calls[0] for each in calls) else "its blocks do not run alike for every batch"


def _can_be_kept(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, Tensor | bool | int | float | str)


def _copied(leaf: Any) -> Any:
    """A tensor with the same bits laid out the same way: kernels may round otherwise for another layout."""
    if not isinstance(leaf, Tensor):
        return leaf
    copy = leaf.detach().clone()
    if leaf.is_nested or leaf.layout is not torch.strided or copy.stride() == leaf.stride():
        return copy
    whole = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
    return whole.set_(leaf.untyped_storage().clone(), leaf.storage_offset(), leaf.shape, leaf.stride())


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _same(a: Any, b: Any) -> bool:
    return _same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is type(b) and a == b


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.is_nested or b.is_nested:
        return a.is_nested and b.is_nested and all(map(_same_bits, a.unbind(), b.unbind()))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return torch.equal(raw[0], raw[1])
