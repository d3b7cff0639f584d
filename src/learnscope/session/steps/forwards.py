"""The model's training forwards: what it is given, at the steps that are looked at.

The hooks are on the model as the session was given it, and there only for these steps. A model that was compiled calls
no hook that is not part of its graph, and while it is being compiled the hooks do nothing: of a model that is compiled
after the session has opened nothing is seen, of one that was compiled before what goes in and what comes out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from learnscope.core.forwards import ForwardCall, described
from learnscope.model.features.given import first_input, is_compiled, is_only_input, padding_token
from learnscope.model.features.output_graph import CalledModules, parameter_uses
from learnscope.model.guard import is_guarded
from learnscope.model.structure import Structure, can_be_compared
from learnscope.task import unwrap
from learnscope.task.shapes import logits_in
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.features.inputs import norm_drifts, root_mean_square
from learnscope.tensor.features.outputs import gradient_disorder, output_numbers
from learnscope.tensor.features.small_inputs import is_small

Safely = Callable[[Callable[..., Any]], Callable[..., Any]]
ROWS = 8, 4096
"""Examples of a batch between which the gradient of one output each is looked at."""
GRAPHS = 2
"""Looked-at steps, from the first on, whose outputs' graphs are gone through: a model is put together once."""


class Forwards:
    """Collects the training forwards of a model as long as it is followed."""

    def __init__(self, model: nn.Module, safely: Safely, held: Callable[[], Iterable[Tensor]] = tuple) -> None:
        """`held` gives the tensors that optimizers hold, besides the model's own."""
        self._model, self._details, self._held = model, False, held
        self._from_outside = False
        """Whether the last forward was given a tensor that something before it has to train."""
        self._handles: list[Any] = []
        self.calls: list[ForwardCall] = []
        self.tokens: Tensor | None = None
        """The inputs of the last forward, if they are tokens."""
        self.sequences: Tensor | None = None
        """Its inputs, tokens or numbers (B, T, C), if it had no other ones."""
        self.padding = padding_token(model)
        self._looks, self._called = 0, CalledModules(model)
        self._is_comparable = can_be_compared(model)
        self._found: tuple[Structure, tuple[nn.Module | None, dict[str, _BatchNorm]]] | None = None
        self._on_input, self._on_output = safely(self._input), safely(self._output)
        self._on_first, self._on_norm, self._on_gradient = safely(self._first), safely(self._norm), safely(_come_by)

    def follow(self, *, details: bool) -> None:
        """Listen to the coming forwards; without `details`, only for tokens."""
        self._details, model, hooks = details, self._model, self._handles
        hooks.append(model.register_forward_pre_hook(_Hook(model, self._on_input), with_kwargs=True))
        if not details:
            return
        hooks.append(model.register_forward_hook(_Hook(model, self._on_output)))
        if is_compiled(model):
            return
        self._looks += 1
        if self._looks <= GRAPHS:
            for name, module in self._called.modules.items():
                hooks.append(module.register_forward_hook(_Hook(module, self._called.called, name)))
        first, norms = self._places()
        if first is not None:
            hooks.append(first.register_forward_hook(_Hook(first, self._on_first)))
        for name, norm in norms.items():
            if norm.track_running_stats:
                hooks.append(norm.register_forward_pre_hook(_Hook(norm, self._on_norm, name, norm)))

    def _places(self) -> tuple[nn.Module | None, dict[str, _BatchNorm]]:
        """The first layer and the batch norms; the model is walked again only if it has changed."""
        if self._found is None or not self._found[0].holds():
            places = first_layer(self._model), batch_norms(self._model)
            self._found = (Structure(self._model), places) if self._is_comparable else None
            return places
        return self._found[1]

    def stop(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self.calls, self.tokens, self.sequences = [], None, None

    def _input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        found = first_input(args, kwargs) if self._model.training else None
        name, given = found if found is not None else ("", None)
        is_text = given is not None and given.ndim == 2 and not given.is_floating_point() and not given.is_complex()
        self.tokens = given.detach() if given is not None and is_text else None
        alone = given is not None and (is_text or given.ndim == 3) and is_only_input(args, kwargs)
        self.sequences = given.detach() if given is not None and alone else None
        if given is not None and self._details:
            self._called.reset()
            self._from_outside = any(isinstance(x, Tensor) and x.requires_grad for x in (*args, *kwargs.values()))
            self.calls.append(described(name, given, self.padding))

    def _output(self, _args: Any, output: Any) -> None:
        if self.calls and "model" not in self.calls[-1].rms:
            try:
                logits = logits_in(output)
            except TypeError:  # outputs of a form of their own
                return
            call = self.calls[-1]
            call.rms["model"], call.outputs = _rms(logits), output_numbers(logits)
            follow_backward(call, logits, self._on_gradient)
            # of several outputs, one alone tells too little
            if self._looks <= GRAPHS and isinstance(output, Tensor) and not self._from_outside:
                look_at_graph(call, logits, {*map(id, self._model.parameters()), *map(id, self._held())}, self._called)

    def _first(self, _args: Any, output: Any) -> None:
        if self.calls and "first" not in self.calls[-1].rms and isinstance(output, Tensor):
            self.calls[-1].rms["first"] = _rms(output)

    def _norm(self, name: str, norm: _BatchNorm, args: tuple[Any, ...]) -> None:
        given, mean, var = (args[0] if args else None), norm.running_mean, norm.running_var
        if self.calls and isinstance(given, Tensor) and mean is not None and var is not None:
            if not norm.training:
                self.calls[-1].fixed.add(name)
            with plain_arithmetic(given.device):
                self.calls[-1].drifts[name] = norm_drifts(given.detach(), mean, var, norm.eps)


class _Hook:
    """A hook that leaves all as it is. In a copied or pickled model it does nothing, and needs no learnscope."""

    def __init__(self, module: nn.Module, action: Callable[..., Any], *before: Any) -> None:
        self._module, self._action, self._before = weakref.ref(module), action, before

    def __call__(self, module: nn.Module, *given: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        # inside a backward, a checkpoint runs it again
        if module is self._module() and not is_guarded() and torch._C._current_graph_task_id() == -1:
            self._action(*self._before, *given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def _rms(outputs: Tensor) -> Tensor:
    with nullcontext() if is_small(outputs) else plain_arithmetic(outputs.device):
        return root_mean_square(outputs.detach())


def first_layer(model: nn.Module) -> nn.Module | None:
    """The first module, in the order of the model, that has weights and no modules of its own."""
    leaves = (module for module in model.modules() if next(module.children(), None) is None)
    return next((leaf for leaf in leaves if next(leaf.parameters(recurse=False), None) is not None), None)


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """By name inside of the model's wrappers."""
    return {name: m for name, m in unwrap(model).named_modules() if isinstance(m, _BatchNorm)}


def look_at_graph(call: ForwardCall, outputs: Tensor, parameters: Collection[int], modules: CalledModules) -> None:
    """Notes in a call what its outputs come from."""
    found = parameter_uses(outputs) if outputs.grad_fn is not None else None
    if found is None:
        return
    uses, leaves = found
    call.outside = sum(leaf.numel() for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in parameters)
    if not torch.is_autocast_enabled(outputs.device.type):  # which uses one cast of a weight for all calls
        call.lost_calls = modules.lost(uses)


def follow_backward(call: ForwardCall, outputs: Tensor, come_by: Callable[..., None]) -> None:
    """Note, when a backward comes by outputs of one number an example, whether it knows of more than the outputs."""
    followed = outputs.requires_grad and not outputs.is_leaf and outputs.is_floating_point()
    if followed and outputs.ndim and outputs.numel() == len(outputs) and ROWS[0] <= len(outputs) <= ROWS[1]:
        outputs.register_hook(partial(come_by, call, outputs.detach().clone()))


def _come_by(call: ForwardCall, outputs: Tensor, gradient: Tensor) -> None:
    if not torch.compiler.is_compiling():
        with plain_arithmetic(gradient.device):
            call.disorder = gradient_disorder(outputs, gradient.detach())
