"""Where an audit lends a GPT-2 an activation of fewer operations, where it does not, and that numbers stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.outputs.reference import compare_outputs, reference_outputs
from learnscope.posttrain.session import AuditSession
from learnscope.probes import (
    Attacks,
    BitSensitivity,
    InferenceSpeed,
    LayerTimes,
    NoiseRobustness,
    PromptPerturbation,
)
from learnscope.task import HuggingFaceTask
from learnscope.tensor.bits.quantize import Scheme
from probes.bits.bit_models import trained_gpt2

Batches = list[dict[str, Tensor]]
BITS = (8, 4, 2)


def activations_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__ == "NewGELUActivation"]


def lent_while(model: nn.Module, probe: ls.Probe, batches: Batches) -> set[bool]:
    """Whether the activations had another forward than their class's, for each pass of this probe."""
    seen: set[bool] = set()

    def look(module: nn.Module, _args: Any) -> None:
        seen.add("forward" in vars(module))

    handles = [module.register_forward_pre_hook(look) for module in activations_of(model)]
    AuditSession(model).measure(probe, batches)
    for handle in handles:
        handle.remove()
    assert not any("forward" in vars(module) for module in model.modules()), "none is left behind"
    return seen


@pytest.mark.parametrize(
    ("probe", "lent"),
    [
        (BitSensitivity(bits=(4,)), True),
        (Attacks(epsilons=(0.1,), steps=2, examples=2), True),
        (NoiseRobustness(examples=2), True),
        (PromptPerturbation(kinds=("token_swaps",), examples=2), True),
        (InferenceSpeed(seconds=0.01, repeats=3, batches=(), lengths=()), False),
        (LayerTimes(seconds=0.01, repeats=3), False),
    ],
)
def test_it_is_lent_where_outputs_are_compared_and_not_where_time_is_measured(probe: ls.Probe, lent: bool) -> None:
    model, batches = trained_gpt2()
    assert lent_while(model, probe, batches) == {lent}


def damages(record: Any) -> dict[tuple[str, int], float]:
    return {(row.scope, row.labels["bits"]): row.value for row in record.rows() if row.name == "kl"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_damages_are_those_of_the_whole_stock_model(dtype: torch.dtype) -> None:
    model, batches = trained_gpt2()
    model.to(dtype)
    found = damages(AuditSession(model).measure(BitSensitivity(bits=BITS), batches))
    units, task = find_units(model), HuggingFaceTask()
    reference = reference_outputs(model, task, batches)
    for unit in units:
        for bits in BITS:
            with quantised(model, {unit.name: bits}, Scheme(), units=units):
                own = float(compare_outputs(model, task, batches, reference)["kl"])
            room = {torch.float64: 1e-9, torch.float32: 2e-3}[dtype]
            assert found[unit.name, bits] == pytest.approx(own, rel=room), (unit.name, bits)


def test_the_model_beside_itself_is_at_no_distance() -> None:
    model, batches = trained_gpt2()
    record = AuditSession(model).measure(ls.BitWidths(bits=(8,)), batches)
    [own] = [row.value for row in record.rows() if (row.name, row.scope) == ("kl", "original")]
    assert own == 0


def test_updates_that_did_nothing_are_at_no_distance() -> None:
    """Also while a model trains, the model and its variants run with the same activations, and only then."""
    model, batches = trained_gpt2()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    seen: list[bool] = []
    for module in activations_of(model):
        module.register_forward_pre_hook(lambda own, _args: seen.append("forward" in vars(own)))
    with ls.watch(model, optimizer, probes=[ls.SparseQuality(every=1)], holdout=batches, strict=True) as w:
        seen.clear()
        for batch in batches:
            loss = model(**batch, labels=batch["input_ids"]).loss
            assert not any(seen[-len(activations_of(model)) :]), "the training forward is the model's own"
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert any(seen)
    frame = w.run.frame("SparseQuality")
    assert set(frame[frame.name == "kl"].value) == {0.0}
    assert not any("forward" in vars(module) for module in model.modules())
