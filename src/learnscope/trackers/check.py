"""`python -m learnscope.trackers.check`: both trackers on a small model of every family of adapters.

Each is trained a few steps under both trackers, saved and loaded; its spectra are compared with those of ΔW built
outright by PEFT, and its gradient norms with those of the gradients themselves.
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

import torch

from learnscope.model.adapters.inventory import find_adapters
from learnscope.model.adapters.parameters import trained_parts
from learnscope.options import known_name
from learnscope.trackers.check_models import FAMILIES, Tiny, tiny
from learnscope.trackers.gradient_flow import GradientFlowTracker
from learnscope.trackers.setup_check import Checked, print_checks
from learnscope.trackers.spectral import SpectralTracker

STEPS = 3
CLOSE = 1e-9
"""Largest deviation, as a share of the largest singular value or of the norm."""


class CheckFailed(Exception):
    """Something is not as it must be; the message says what."""


def check_family(family: str, folder: Path) -> Checked:
    """Train, track, save, load and compare; a failure of any kind is the answer, not an exception."""
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns of norms that it has no name for
            told, ok = _compare(tiny(family), folder / family), True
    except Exception as error:  # noqa: BLE001  (whatever goes wrong is what the check is there to tell)
        told, ok = f"{type(error).__name__}: {error}", False
    return Checked(family, ok, told, seconds=time.perf_counter() - started)


def _compare(one: Tiny, folder: Path) -> str:
    spectral = SpectralTracker(one.model, 1, folder, optimizer=one.optimizer)
    gradients = GradientFlowTracker(one.model, 1, folder, optimizer=one.optimizer)
    norms: dict[tuple[str, str], float] = {}

    def before_step(step: int) -> None:
        gradients.log_step(step)
        norms.update(_norms(one))

    for step in range(1, STEPS + 1):
        one.step(step, before_step, spectral.log_step)
    if spectral.get_summary_stats()["peft_type"] != one.family:
        raise CheckFailed(f"taken for {spectral.get_summary_stats()['peft_type']}")
    loaded, flow = SpectralTracker.load(spectral.save()), GradientFlowTracker.load(gradients.save())
    if any(loaded.get_layer_history(name) != spectral.get_layer_history(name) for name in spectral.modules["default"]):
        raise CheckFailed("the history that was loaded is not the one that was saved")
    parts = _compare_gradients(flow, norms)
    found = _compare_spectra(loaded, one)
    return f"{found}; {parts} gradient norms"


def _norms(one: Tiny) -> dict[tuple[str, str], float]:
    """Module and component of every part that has a gradient, and the norm of that."""
    parts = trained_parts(find_adapters(one.model), one.model.named_parameters(), others=False)
    held = [(part, part.parameter.grad) for part in parts]
    return {(part.scope, part.component): float(grad.double().norm()) for part, grad in held if grad is not None}


def _compare_gradients(flow: GradientFlowTracker, norms: dict[tuple[str, str], float]) -> int:
    if not norms:
        raise CheckFailed("no part of the adapters has a gradient")
    for (module, component), norm in norms.items():
        found = flow.get_layer_history(module)[component][-1]
        if found is None or not math.isclose(found, norm, rel_tol=CLOSE):
            raise CheckFailed(f"the gradient of {component} of {module} is {found}, not {norm}")
    return len(norms)


def _compare_spectra(loaded: SpectralTracker, one: Tiny) -> str:
    updates = one.updates()
    if not updates:  # vectors, of which the reason must be told
        history = loaded.get_layer_history(loaded.modules["default"][0])
        if set(history["singular_values"]) != {None} or not history["reasons"]["singular_values"]:
            raise CheckFailed("a spectrum of what is no matrix")
        return f"{len(loaded.modules['default'])} modules, which add no matrix"
    worst = 0.0
    for name, update in updates.items():
        truth = torch.linalg.svdvals(update)
        found = torch.tensor(loaded.get_layer_history(name)["singular_values"][-1], dtype=torch.float64)
        worst = max(worst, float((found - truth[: len(found)]).abs().max() / truth[0]))
    if len(updates) != len(loaded.modules["default"]) or not worst <= CLOSE:
        raise CheckFailed(f"{len(updates)} spectra of ΔW, of which one is off by {worst:.1g}")
    return f"{len(updates)} spectra within {worst:.0e} of those of ΔW"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all families, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m learnscope.trackers.check", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="family", help=f"one of {', '.join(FAMILIES)}; without, all")
    chosen = parser.parse_args(arguments).families or FAMILIES
    for family in chosen:
        try:
            known_name("family", family, FAMILIES)
        except ValueError as error:
            parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        checks = [check_family(family, Path(folder)) for family in chosen]
    seconds = sum(one.seconds for one in checks)
    return print_checks(checks, f"Trackers on {len(checks)} families of adapters, {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
