"""The guard: the only thing that may run or disturb a model while it trains.

On exit, also after an error, everything is as it was: modes, buffers, gradients, `requires_grad`, random state,
hooks. It reports what it cannot undo: weights or gradients that were written in place.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_REPACKS = "support_avx512bf16_for_cpu"


_guarded = 0
"""Guards that are open in this process."""


def is_guarded() -> bool:
    """Whether what runs now is run by a measurement, not by the training loop."""
    return _guarded > 0


class GuardError(RuntimeError):
    """A weight or gradient was changed in place under the guard; the message names it."""


@contextmanager
def guard(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Run `model` and restore its state afterwards. Inside, it is in eval mode unless `training` is true."""
    modules = list(model.modules())  # once: walking a model takes longer than what is kept of it
    parameters = list({id(p): p for module in modules for p in module._parameters.values() if p is not None}.values())
    with ExitStack() as stack:
        stack.enter_context(_counted())
        stack.enter_context(preserve_rng())
        # inside the user's autocast, cached casts would go on holding the old weights after these are exchanged
        torch.clear_autocast_cache()
        stack.callback(torch.clear_autocast_cache)
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and importing dynamo takes seconds
            # compiled models run eagerly: no recompilation for our batch shapes, and hooks fire
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        _reshard(modules)
        stack.callback(_reshard, modules)
        for module in modules if "bitsandbytes" in sys.modules else ():
            # on some CPUs it repacks 4-bit weights at the first evaluation, and rounds their scales for good
            if vars(module).get(_REPACKS):
                setattr(module, _REPACKS, False)
                stack.callback(setattr, module, _REPACKS, True)
        stack.enter_context(_bare_replicas(modules))
        stack.enter_context(_preserve_hooks(modules, parameters))
        stack.enter_context(_preserve_buffers(modules))
        stack.enter_context(_preserve_parameters(model, parameters))
        # flags are set one by one: model.train() would also switch modules that are in eval mode on purpose
        modes = [(module, module.training) for module in modules]
        stack.callback(_set_modes, modes)
        _set_modes([(module, training) for module, _ in modes])
        yield


@contextmanager
def _counted() -> Iterator[None]:
    global _guarded
    _guarded += 1
    try:
        yield
    finally:
        _guarded -= 1


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the random state of Python, NumPy, torch on the CPU and every initialised accelerator."""
    import numpy as np

    python, numpy = random.getstate(), np.random.get_state()
    accelerator = torch.accelerator.current_accelerator() or torch.device("cuda")
    module = torch.get_device_module(accelerator)
    # reading the state of an accelerator that is not in use yet would initialise it and take its memory
    in_use = torch.accelerator.is_available() and getattr(module, "is_initialized", lambda: True)()
    with torch.random.fork_rng(range(module.device_count()) if in_use else (), device_type=accelerator.type):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _reshard(modules: Sequence[nn.Module]) -> None:
    """An FSDP module left gathered by a forward in a step hook would corrupt the next training step."""
    sharded: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    for module in modules if sharded is not None else ():
        if isinstance(module, sharded):
            module.reshard()


@contextmanager
def _bare_replicas(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Call what DistributedDataParallel wraps, not the wrapper: its forward waits for the other ranks, which may not
    be looking, and prepares the next training step's exchange of gradients.
    """
    replicas = [m for m in modules if isinstance(m, nn.parallel.DistributedDataParallel)]
    own = [vars(replica).get("forward") for replica in replicas]
    for replica in replicas:
        # a bound method, so that a copy of the model made inside calls the copied module
        vars(replica)["forward"] = replica.module.__call__
    try:
        yield
    finally:
        for replica, forward in zip(replicas, own, strict=True):
            if forward is None:
                del vars(replica)["forward"]
            else:
                vars(replica)["forward"] = forward


def _set_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    for module, training in modes:
        own = vars(module)
        if "training" in own:  # not so of a scripted module, whose flag is elsewhere
            own["training"] = training  # torch's way of setting an attribute takes several times as long
        else:
            module.training = training


@contextmanager
def _preserve_buffers(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Contents and identity of every buffer, non-persistent ones too."""
    places: list[tuple[nn.Module, str, Tensor | None]] = []
    contents: dict[int, tuple[Tensor, Tensor]] = {}
    for module in modules:
        for name, buffer in module._buffers.items():
            places.append((module, name, buffer))
            if buffer is not None and id(buffer) not in contents:
                contents[id(buffer)] = (buffer, buffer.detach().clone())
    try:
        yield
    finally:
        for module, name, buffer in places:
            module._buffers[name] = buffer
        for buffer, copy in contents.values():
            # through .data: a backward that is still pending has saved this version of the buffer
            target, source = buffer.data, copy
            for dim, (stride, length) in enumerate(zip(target.stride(), target.shape, strict=True)):
                if stride == 0 and length > 1:  # an expanded tensor, where many entries share one memory location
                    target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
            target.copy_(source)


@contextmanager
def _preserve_hooks(modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Remove the hooks that were added inside, to modules and to parameters."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    places: list[tuple[Any, str]] = [(module, kind) for module in modules for kind in kinds]
    places += [(p, kind) for p in parameters for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    before = [tuple(getattr(owner, kind) or ()) for owner, kind in places]
    try:
        yield
    finally:
        for (owner, kind), earlier in zip(places, before, strict=True):
            hooks = getattr(owner, kind)
            if hooks:  # most have none
                for key in set(hooks).difference(earlier):
                    del hooks[key]


@contextmanager
def _preserve_parameters(model: nn.Module, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Restore `requires_grad` and gradients; report a weight or gradient that was written in place.

    A gradient is set aside when a backward of the guarded code reaches its parameter, so that it can be read until
    then and is never accumulated into, without a copy.
    """
    saved = [(p, p.requires_grad, p._version, p.grad) for p in parameters]
    versions = [_version(gradient) for *_, gradient in saved]
    handles = [
        p.register_hook(partial(_set_aside, p, gradient))
        for p, requires_grad, _, gradient in saved
        if requires_grad and gradient is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        written: list[tuple[str, nn.Parameter]] = []
        for (p, requires_grad, version, gradient), gradient_version in zip(saved, versions, strict=True):
            if p.requires_grad is not requires_grad:
                p.requires_grad_(requires_grad)
            if p.grad is not gradient:
                p.grad = gradient
            if p._version != version:
                written.append(("weight", p))
            if _version(gradient) != gradient_version:
                written.append(("gradient of", p))
    if written:
        (what, first), names = written[0], {id(p): name for name, p in model.named_parameters()}
        raise GuardError(
            f"{len(written)} tensors were changed in place while the model was being examined, first: "
            f"{what} {names.get(id(first), 'a parameter that is gone')}. "
            "Work on copies, or exchange weights through learnscope.model.weights.swap."
        )


def _set_aside(parameter: nn.Parameter, gradient: Tensor, _new: Tensor) -> None:
    """Leaf hook: runs before a new gradient is accumulated, and clears `.grad`, so that it starts from zero."""
    if parameter.grad is gradient:
        parameter.grad = None


def _version(tensor: Tensor | None) -> int | None:
    # tensors made under inference_mode have no version counter, and cannot be written in place outside it
    return None if tensor is None or tensor.is_inference() else tensor._version
