"""The contract: a watched run's losses and final weights equal an unwatched run's, bit for bit."""

from __future__ import annotations

import random
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import learnscope as ls
from compiler import needs_compiler
from contract.loops import STEPS, Outcome, lora, run_loop, run_pending
from contract.probes import MORE, build, packaged
from learnscope.core.probe import At


class Careless(ls.Probe):
    """A user's probe that does everything one should not do, and is put right by the guard."""

    at: At = "before_step"

    def measure(self, moment: ls.Moment) -> dict[str, float]:
        torch.randn(3), np.random.rand(), random.random()
        model = moment.model
        model.train()
        with torch.enable_grad():
            x, y, *_ = moment.train_data[0]
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
            x, *_ = moment.train_data[0]
            model = moment.model["net"] if isinstance(moment.model, torch.nn.ModuleDict) else moment.model
            flat = model(x).float()
        assert as_is is not None
        return {"spread": flat.abs().max().item(), "loss": as_is.mean().item()}


def probes_under_test(*, adapters: bool) -> dict[str, Any]:
    """What makes each, by a name for it."""
    built_in = {name: partial(build, name) for name in packaged(adapters=adapters)}
    built_in |= {f"{name}-{'-'.join(options)}": partial(build, name, **options) for name, options in MORE}
    return {**built_in, "Careless": Careless, "ZeroedWeights": ZeroedWeights}


ADAPTERS = "adapters"
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
    ADAPTERS: partial(run_loop, change=lora(), accumulate=2, sizes=True),
}


@cache
def unwatched(loop: str) -> Outcome:
    return LOOPS[loop](None)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where probes that keep a file may do so."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("loop", LOOPS)
def test_all_probes_together_change_nothing(loop: str) -> None:
    adapters = loop == ADAPTERS
    watched = LOOPS[loop]([make() for make in probes_under_test(adapters=adapters).values()])
    assert watched.differences(unwatched(loop)) == []
    recorded = {record.probe for record in watched.run.records()}  # type: ignore[union-attr]
    assert recorded >= set(packaged(adapters=adapters)), "each was measured"


def test_probes_of_adapters_refuse_a_model_without_them_by_name() -> None:
    others = packaged(adapters=False)
    for name in packaged():
        if name not in others:
            with pytest.raises(ls.AdapterError, match="Net has no adapters: wrap it with peft"):
                run_loop([build(name)])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("loop", "probe"), [(loop, probe) for loop in LOOPS for probe in probes_under_test(adapters=loop == ADAPTERS)]
)
def test_a_watched_run_is_bit_identical(loop: str, probe: str) -> None:
    assert LOOPS[loop]([probes_under_test(adapters=True)[probe]()]).differences(unwatched(loop)) == []


def test_a_model_compiled_by_inductor() -> None:
    needs_compiler()
    run = partial(run_loop, compiler="inductor")
    plain = run(None)
    assert run([make() for make in probes_under_test(adapters=False).values()]).differences(plain) == []


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
