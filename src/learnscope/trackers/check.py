"""`python -m learnscope.trackers.check`: both trackers on a small model of every family of adapters.

Each model is trained a few steps under both trackers, which are saved and loaded; the spectra are compared with those
of the ΔW that PEFT builds, and the gradient norms with those of the gradients themselves.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnscope.model.adapters.inventory import find_adapters
from learnscope.model.adapters.parameters import trained_parts
from learnscope.model.adapters.start import init_milora
from learnscope.options import known_name
from learnscope.trackers.gradient_flow import GradientFlowTracker
from learnscope.trackers.setup_check import CheckResult, print_checks
from learnscope.trackers.spectral import SpectralTracker

FAMILIES = (
    "lora", "dora", "adalora", "pissa", "milora", "milora+", "lora+", "rslora", "lora-fa", "vera", "ia3", "layernorm",
)  # fmt: skip
TARGETS = ["q_proj", "down_proj"]
RANK, ALPHA, TOKENS, STEPS = 3, 5, 17, 3
CLOSE = 1e-9
"""Largest deviation, as a share of the largest singular value or of the norm."""


class CheckFailed(Exception):
    """Something is not as it must be; the message says what."""


class TinyModel:
    """A Llama of two blocks with an adapter, in float64 so that PEFT's own ΔW is exact enough to compare with."""

    def __init__(self, family: str) -> None:
        from peft import get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        llama: Any = LlamaForCausalLM  # has no types
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            sizes = LlamaConfig(
                vocab_size=TOKENS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=2, max_position_embeddings=16,
            )  # fmt: skip
            self.model: Any = get_peft_model(llama(sizes), _config(family)).double()
        if family.startswith("milora"):
            init_milora(self.model)
        self.family, self.optimizer = family, _optimizer(family, self.model)
        self._start = self._added() if family.startswith(("milora", "pissa")) else {}

    def train(self, step: int, before_step: Any, after_step: Any) -> None:
        """One step, with a call when the gradients are complete and one when the weights have changed."""
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, TOKENS, (2, 6), generator=generator)
        self.model(input_ids=ids, labels=ids).loss.backward()
        before_step(step)
        self.optimizer.step()
        if self.family == "adalora":
            self.model.base_model.update_and_allocate(step)
        self.optimizer.zero_grad()
        after_step(step)

    def updates(self) -> dict[str, Tensor]:
        """ΔW of every module, as PEFT builds it, less what it was at the start."""
        return {name: value - self._start.get(name, 0.0) for name, value in self._added().items()}

    def _added(self) -> dict[str, Tensor]:
        """What every adapter adds, by the module's name; empty for families that add no matrix."""
        return {
            name: layer.get_delta_weight("default").detach().clone()
            for name, layer in self.model.named_modules()
            if name.endswith(tuple(TARGETS)) and hasattr(layer, "get_delta_weight")
        }

    def gradient_norms(self) -> dict[tuple[str, str], float]:
        """By module and component, of every part that has a gradient."""
        parts = trained_parts(find_adapters(self.model), self.model.named_parameters(), others=False)
        grads = {(part.scope, part.component): part.parameter.grad for part in parts}
        return {key: float(grad.double().norm()) for key, grad in grads.items() if grad is not None}


def _config(family: str) -> Any:
    import peft

    if family == "adalora":
        ranks: dict[str, Any] = {"init_r": RANK, "target_r": 2, "tinit": 1, "tfinal": 1, "deltaT": 1, "total_step": 10}
        return peft.AdaLoraConfig(lora_alpha=ALPHA, target_modules=TARGETS, **ranks)
    if family == "vera":
        return peft.VeraConfig(r=RANK, target_modules=TARGETS)
    if family == "ia3":
        return peft.IA3Config(target_modules=TARGETS, feedforward_modules=["down_proj"])
    if family == "layernorm":
        return peft.LNTuningConfig(target_modules=["input_layernorm", "post_attention_layernorm"])
    options: dict[str, dict[str, Any]] = {
        "dora": {"use_dora": True}, "rslora": {"use_rslora": True}, "pissa": {"init_lora_weights": "pissa"},
    }  # fmt: skip
    return peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, **options.get(family, {}))


def _optimizer(family: str, model: Any) -> Any:
    from peft.optimizers import create_lorafa_optimizer, create_loraplus_optimizer

    if family.endswith("+"):
        return create_loraplus_optimizer(model, torch.optim.AdamW, lr=1e-2, loraplus_lr_ratio=4)
    if family == "lora-fa":
        return create_lorafa_optimizer(model, RANK, ALPHA, lr=1e-2)
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def check_family(family: str, folder: Path) -> CheckResult:
    """Train, track, save, load and compare; a failure of any kind is the result, not an exception."""
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns of norms that it has no name for
            message, ok = _compare(TinyModel(family), folder / family), True
    except Exception as error:  # noqa: BLE001  (whatever goes wrong is the result of the check)
        message, ok = f"{type(error).__name__}: {error}", False
    return CheckResult(family, ok, message, seconds=time.perf_counter() - started)


def _compare(tiny: TinyModel, folder: Path) -> str:
    spectral = SpectralTracker(tiny.model, 1, folder, optimizer=tiny.optimizer)
    gradients = GradientFlowTracker(tiny.model, 1, folder, optimizer=tiny.optimizer)
    norms: dict[tuple[str, str], float] = {}

    def before_step(step: int) -> None:
        gradients.log_step(step)
        norms.update(tiny.gradient_norms())

    for step in range(1, STEPS + 1):
        tiny.train(step, before_step, spectral.log_step)
    family = spectral.get_summary_stats()["peft_type"]
    if family != tiny.family:
        raise CheckFailed(f"taken for {family}")
    loaded, flow = SpectralTracker.load(spectral.save()), GradientFlowTracker.load(gradients.save())
    if any(loaded.get_layer_history(name) != spectral.get_layer_history(name) for name in spectral.modules["default"]):
        raise CheckFailed("the history that was loaded is not the one that was saved")
    if not norms:
        raise CheckFailed("no part of the adapters has a gradient")
    for (module, component), norm in norms.items():
        value = flow.get_layer_history(module)[component][-1]
        if value is None or not math.isclose(value, norm, rel_tol=CLOSE):
            raise CheckFailed(f"the gradient of {component} of {module} is {value}, not {norm}")
    return f"{_compare_spectra(loaded, tiny.updates())}; {len(norms)} gradient norms"


def _compare_spectra(loaded: SpectralTracker, updates: dict[str, Tensor]) -> str:
    modules = loaded.modules["default"]
    if not updates:  # vectors, which have a reason instead
        history = loaded.get_layer_history(modules[0])
        if set(history["singular_values"]) != {None} or not history["reasons"]["singular_values"]:
            raise CheckFailed("a spectrum of what is no matrix")
        return f"{len(modules)} modules, which add no matrix"
    worst = 0.0
    for name, update in updates.items():
        truth = torch.linalg.svdvals(update)
        values = torch.tensor(loaded.get_layer_history(name)["singular_values"][-1], dtype=torch.float64)
        worst = max(worst, float((values - truth[: len(values)]).abs().max() / truth[0]))
    if len(updates) != len(modules) or not worst <= CLOSE:
        raise CheckFailed(f"{len(updates)} spectra of ΔW, of which one is off by {worst:.1g}")
    return f"{len(updates)} spectra within {worst:.0e} of those of ΔW"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all families, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m learnscope.trackers.check", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="family", help=f"one of {', '.join(FAMILIES)}; without, all")
    chosen = parser.parse_args(arguments).families or FAMILIES
    try:
        for family in chosen:
            known_name("family", family, FAMILIES)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        checks = [check_family(family, Path(folder)) for family in chosen]
    seconds = sum(check.seconds for check in checks)
    return print_checks(checks, f"Trackers on {len(checks)} families of adapters, {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
