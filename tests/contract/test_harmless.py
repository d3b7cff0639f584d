"""The contract: a watched run's losses and final weights equal an unwatched run's, bit for bit."""

from __future__ import annotations

import random
import shutil
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

import learnscope as ls
from contract.loops import STEPS, Outcome, run_loop, run_pending
from learnscope.core.probe import At
from learnscope.probes import all_probes

PACKAGED = tuple(
    probe
    for probe in all_probes()
    if probe.__module__.startswith("learnscope.probes.")
    and probe.__module__.split(".")[2] not in ("adapters", "bits", "cost", "robustness", "weights")
    and probe.__name__ not in ("ExampleLedger", "Performance", "WeightDelta")
)


class Careless(ls.Probe):
    """A user's probe that does everything one should not do, and is put right by the guard."""

    at: At = "before_step"

    def measure(self, moment: ls.Moment) -> dict[str, float]:
        torch.randn(3), np.random.rand(), random.random()
        model = moment.model
        model.train()
        with torch.enable_grad():
            x, y = moment.train_data[0]
            forward = model["net"] if isinstance(model, torch.nn.ModuleDict) else model
            loss = torch.nn.functional.cross_entropy(forward(x).float(), y)
            loss.backward()
        for p in model.parameters():
            p.requires_grad_(False)
        model.register_forward_hook(lambda *_: 1 / 0)
        model.zero_grad()
        return {"loss": loss.item()}


class ZeroedWeights(ls.Probe):
    """Exchanges the weights for zeros and looks at what the model says then."""

    def measure(self, moment: ls.Moment) -> dict[str, float]:
        as_is = moment.holdout.losses
        zeros = {name: torch.zeros_like(p) for name, p in moment.model.named_parameters()}
        with moment.exchanged(zeros):
            x, _ = moment.train_data[0]
            model = moment.model["net"] if isinstance(moment.model, torch.nn.ModuleDict) else moment.model
            flat = model(x).float()
        assert as_is is not None
        return {"spread": flat.abs().max().item(), "loss": as_is.mean().item()}


def probes_under_test() -> list[Any]:
    built_in = [partial(kind, every=1) for kind in PACKAGED]
    built_in += [partial(ls.GradientFlow, every=1, stability=True, per_tensor=True)]
    built_in += [partial(ls.Holdout, every=1, at="epoch"), partial(ls.ParameterChange, every=2, snapshot_device="disk")]
    return [*built_in, Careless, ZeroedWeights]


def name_of(make: Any) -> str:
    kind = make.func if isinstance(make, partial) else make
    extra = [f"{k}={v}" for k, v in make.keywords.items() if k != "every"] if isinstance(make, partial) else []
    return "-".join([kind.__name__, *extra])


LOOPS: dict[str, Any] = {
    "adamw": partial(run_loop),
    "sgd": partial(run_loop, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "accumulation and clipping": partial(run_loop, accumulate=3, clip=0.5),
    "autocast and scaler": partial(run_loop, half=True, clip=1.0),
    "fused under scaler": partial(
        run_loop, half=True, fused_scaler=True, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True)
    ),
    "stepping inside autocast": partial(run_loop, inside_autocast=True),
    "backward pending": run_pending,
    "compiled": partial(run_loop, compiler="aot_eager"),
    "compiled late": partial(run_loop, compiler="aot_eager", compile_late=True, accumulate=2),
}


@cache
def unwatched(loop: str) -> Outcome:
    return LOOPS[loop](None)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("make", probes_under_test(), ids=name_of)
def test_a_watched_run_is_bit_identical(make: Any, loop: str) -> None:
    assert LOOPS[loop]([make()]).differences(unwatched(loop)) == []


def test_all_probes_together_in_every_loop() -> None:
    for loop, run in LOOPS.items():
        watched = run([make() for make in probes_under_test()])
        assert watched.differences(unwatched(loop)) == [], loop


def audit_probes() -> list[ls.Probe]:
    """What audits ask of finished models, asked in the middle of a training, as cheaply as it gets."""
    now: dict[str, Any] = {"every": 5, "at": "after_step"}
    attack = {"epsilons": (0.1,), "steps": 2, "restarts": 1, "examples": 4}
    return [
        ls.Performance(**now),
        ls.InferenceSpeed(**now, batches=(2,), seconds=0.01, repeats=3),
        ls.LayerTimes(**now, repeats=2, seconds=0.01),
        ls.MemoryUse(**now),
        ls.BitSensitivity(**now, bits=(4,), examples=4),
        ls.BitWidths(**now, bits=(4, 2), examples=4),
        ls.BitOptimum(**now, bits=(4, 2), examples=4),
        ls.ExportedSpeed(**now, seconds=0.01, repeats=3),
        ls.Attacks(**now, **attack),
        ls.NoiseRobustness(**now, sigmas=(0.1,), bits=(4,), examples=4),
        ls.InputPerturbation(**now, levels=(0.2,), examples=4),
        ls.BitRobustness(**now, bits=(4,), steps=2, examples=4),
    ]


@pytest.mark.parametrize("loop", ["adamw", "stepping inside autocast", "backward pending", "compiled"])
def test_an_audit_in_the_middle_of_a_training_changes_nothing(loop: str) -> None:
    assert LOOPS[loop](audit_probes()).differences(unwatched(loop)) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_model_compiled_by_inductor() -> None:
    run = partial(run_loop, compiler="inductor")
    plain = run(None)
    assert run([make() for make in probes_under_test()]).differences(plain) == []


class Harmful(ls.Probe):
    """Disturbs one thing behind the guard's back. `reads_only` is a lie here, so that no guard stands before it."""

    what: str
    reads_only = True

    def measure(self, moment: ls.Moment) -> dict[str, float]:
        model = moment.model
        if self.what == "random numbers":
            torch.randn(3)
        elif self.what == "weights":
            next(iter(model.parameters())).data.add_(1e-7)
        elif self.what == "mode":
            model.eval()
        elif self.what == "statistics":
            with torch.no_grad():
                model(torch.randn(8, 10, generator=torch.Generator().manual_seed(0)))
        return {"done": 1.0}


@pytest.mark.parametrize("what", ["random numbers", "weights", "mode", "statistics"])
def test_the_contract_notices_a_harmful_probe(what: str) -> None:
    """The positive control: without it, the comparison above might be blind."""
    assert run_loop([Harmful(what=what)]).differences(unwatched("adamw"))


def test_zeroed_weights_change_the_output() -> None:
    """Beside every 'exactly 0' a positive control: exchanged weights really are the ones that run."""
    seen: list[float] = []

    class Look(ZeroedWeights):
        def measure(self, moment: ls.Moment) -> dict[str, float]:
            rows = super().measure(moment)
            seen.append(rows["spread"])
            return rows

    for loop in ("adamw", "stepping inside autocast", "compiled"):
        LOOPS[loop]([Look()])
    # zero weights, zero biases, zero batch norm: every logit is exactly 0, also inside the user's autocast
    assert len(seen) >= 3 * STEPS
    assert set(seen) == {0.0}
