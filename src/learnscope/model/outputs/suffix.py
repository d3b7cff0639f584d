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

from learnscope.names import clean_path, resolve

T = TypeVar("T")
_Forward = Callable[..., Any]
_Output = tuple[list[Any], Any]
"""A block's output: its leaves, and the structure they come from."""
STATELESS = frozenset({"bert", "gpt2", "llama", "qwen2", "qwen3", "vit"})
"""Model types of transformers whose blocks leave no state behind that other blocks read."""
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
        self._outputs: dict[str, list[_Output]] = {}
        self._inner: dict[str, list[str]] = {}
        """For each block, its parts that run before another of its parts, such as the attention before the MLP."""
        self.reason: str | None = None if self._blocks else "its blocks are not known"

    def record(self, run: Callable[[Any], T], batches: Sequence[Any]) -> list[T]:
        """The result of `run` for each batch, in one pass that keeps the output of every block."""
        results: list[T] = []
        calls: list[list[str]] = []
        modules = {**self._blocks, **self._parts} if self.reason is None else {}
        self._outputs = {name: [] for name in modules}
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
                    same = _same_bits(run(), expected) and not differ
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
        first: dict[int, int] = {}
        named = list(self.model.named_parameters(remove_duplicate=False))
        for name, parameter in named:
            # outside of blocks (an embedding or a head): when it runs is not known
            number = next((n for n, block in enumerate(self._order) if name.startswith(f"{block}.")), 0)
            memory = parameter.untyped_storage().data_ptr()
            first[memory] = min(first.get(memory, number), number)
        return {name: first[parameter.untyped_storage().data_ptr()] for name, parameter in named}

    @contextmanager
    def after(self, names: Iterable[str]) -> Iterator[None]:
        """A pass over the batches that skips the blocks before the parameters with these names."""
        changed = list(names)
        cut = self.begins_at(changed)
        skipped = self._order[:cut]
        if cut < len(self._order) and all(name.startswith(f"{self._order[cut]}.") for name in changed):
            # of the first block that runs, the parts before the change are skipped too
            parts = self._inner[self._order[cut]]
            hit = (n for n, part in enumerate(parts) if any(name.startswith(f"{part}.") for name in changed))
            skipped = [*skipped, *parts[: min(hit, default=len(parts))]]
        with self._skipping(skipped):
            yield

    @contextmanager
    def _skipping(self, names: Sequence[str], differ: list[str] | None = None) -> Iterator[None]:
        """A pass over all recorded batches in which these blocks return their recorded outputs.

        With `differ` over the first batch: the other blocks whose output is not the recorded one are added to it.
        """
        recorded = {name: iter(self._outputs[name]) for name in names}
        forwards: dict[str, _Forward] = {name: partial(_replay, name, outputs) for name, outputs in recorded.items()}
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
        configs: dict[int, Any] = {id(c): c for c in (getattr(m, "config", None) for m in self.model.modules())}
        with ExitStack() as stack:
            for config in configs.values():
                if getattr(config, "use_cache", False):
                    stack.callback(setattr, config, "use_cache", config.use_cache)
                    config.use_cache = False
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
        if spec != recorded_spec or not all(map(_same, leaves, recorded)):
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
            self._outputs[name].append(([_copied(leaf) for leaf in leaves], spec))
        return output

    def _forget_if_useless(self) -> None:
        if self.reason is not None:
            self._outputs, self._order, self._inner = {}, [], {}


def _replay(name: str, outputs: Iterator[_Output], /, *_args: Any, **_kwargs: Any) -> Any:
    output = next(outputs, None)
    if output is None:
        raise RuntimeError(f"{name} runs more often than it was recorded: run the same batches again")
    # copies: the next block may write into its input
    return pytree.tree_unflatten([_copied(leaf) for leaf in output[0]], output[1])


def _irregular(calls: Sequence[Sequence[str]], blocks: Sequence[str]) -> str | None:
    """Why these calls, one list per batch, are not each block once and always in the same order; None if they are."""
    counts = Counter(calls[0])
    for name in blocks:
        if counts[name] != 1:
            return f"{name} runs {counts[name]} times in a forward"
    return (
        None if all(names == calls[0] for names in calls) else "the order of its blocks is not the same for every batch"
    )


def _copied(leaf: Any) -> Any:
    """A copy with the same bits and the same strides: kernels may round differently for another layout."""
    if not isinstance(leaf, Tensor):
        return leaf
    copy = leaf.detach().clone()
    if leaf.is_nested or leaf.layout is not torch.strided or copy.stride() == leaf.stride():
        return copy
    empty = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
    return empty.set_(leaf.untyped_storage().clone(), leaf.storage_offset(), leaf.shape, leaf.stride())


def _same(a: Any, b: Any) -> bool:
    return _same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is type(b) and a == b


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.is_nested or b.is_nested:
        return a.is_nested and b.is_nested and all(map(_same_bits, a.unbind(), b.unbind()))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return torch.equal(raw[0], raw[1])


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of the model's stacks by name, none inside another; if there are none, children of a Sequential."""
    layers = {resolve(name).layer for name, _ in model.named_parameters() if resolve(name).recognised}
    blocks: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        nested = path.startswith(tuple(f"{block}." for block in blocks))
        if path and clean_path(path) in layers and not nested:
            layers.remove(clean_path(path))  # each once
            blocks[path] = module
    sequential = next(((path, m) for path, m in model.named_modules() if isinstance(m, nn.Sequential)), None)
    if blocks or sequential is None:
        return blocks
    prefix = f"{sequential[0]}." if sequential[0] else ""
    children = sequential[1].named_children()
    return {f"{prefix}{name}": child for name, child in children if any(True for _ in child.parameters())}


def find_inner(name: str, block: nn.Module) -> dict[str, nn.Module]:
    """The children of a block that hold matrices: the outputs of those before a changed one can be reused."""
    heavy = {
        f"{name}.{child}": module
        for child, module in block.named_children()
        if any(p.ndim > 1 for p in module.parameters()) and not isinstance(module, nn.ModuleList | nn.ModuleDict)
    }
    return heavy if len(heavy) > 1 else {}


def are_stateless(model: nn.Module, blocks: Iterable[nn.Module]) -> bool:
    """Whether these are unmodified blocks of such a model type: not subclassed, not patched, without hooks."""
    family = getattr(getattr(model, "config", None), "model_type", None)
    home = f"transformers.models.{family}."
    return family in STATELESS and all(
        type(block).__module__.startswith(home)
        and type(part).__module__.startswith(("transformers.", "torch.nn."))
        and "forward" not in vars(part)
        and not part._forward_hooks
        and not part._forward_pre_hooks
        for block in blocks
        for part in block.modules()
    )
