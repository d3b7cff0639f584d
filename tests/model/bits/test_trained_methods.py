"""Calibrated quantisers on models that were trained here: better on held-out text, never worse on their own data."""

from __future__ import annotations

import pytest
import torch

from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.quantised_units import find_units
from learnscope.tensor.bits.quantize import Scheme
from model.bits.trained_models import calibration, held_out_kl, tokens, trained

FAMILIES = ("gpt2", "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_they_have_learned_something(family: str) -> None:
    """More than how often each byte comes, or the comparisons below say nothing of trained models."""
    text = tokens("validation")[:64]
    counts = torch.bincount(tokens("train").flatten(), minlength=256).double() + 1
    by_frequency = -(counts / counts.sum()).log()[text].mean()
    with torch.no_grad():
        assert float(trained(family)(input_ids=text, labels=text).loss) < by_frequency - 0.3


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_gptq_is_better_than_round_to_nearest_on_held_out_text(family: str, bits: int) -> None:
    """Of the mean KL, and of nearly every sequence."""
    model = trained(family)
    nearest, gptq = (held_out_kl(model, method, bits, Scheme()) for method in ("rtn", "gptq"))
    assert gptq.mean() < 0.5 * nearest.mean()
    assert (gptq < nearest).double().mean() > 0.9


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(granularity="group", group_size=32)])
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_change_their_outputs_less_on_the_calibration_data(family: str, scheme: Scheme) -> None:
    """Row by row no more than round-to-nearest (GPTQ), weight by weight (AWQ); 1e-6 for float64 sums over float32."""
    model = trained(family)
    less = compared = 0
    for unit in find_units(model):
        for tensor in unit.tensors:
            statistics = calibration(model).of(tensor)
            assert statistics is not None
            stored = model.get_parameter(tensor.name).detach()
            errors = {}
            for method in ("rtn", "gptq", "awq"):
                made = QuantisedCopies(model, scheme, method, calibration(model)).of(
                    tensor, tensor.as_matrix(stored), 4
                )  # fmt: skip
                errors[method] = statistics.output_error(tensor.as_matrix(made) - tensor.as_matrix(stored))
            assert (errors["gptq"] <= errors["rtn"] * (1 + 1e-6)).all()
            assert errors["awq"].sum() <= errors["rtn"].sum() * (1 + 1e-6)
            less += int(errors["gptq"].sum() < 0.7 * errors["rtn"].sum())
            compared += 1
    assert less >= 0.75 * compared


@pytest.mark.soak
@pytest.mark.parametrize("group", [None, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_gptq_is_better_in_larger_models_of_several_seeds(family: str, group: int | None) -> None:
    scheme = Scheme() if group is None else Scheme(granularity="group", group_size=group)
    for seed in range(3):
        model = trained(family, 96, 3, 400, seed)
        for bits in (2, 3, 4):
            kl = {
                method: float(held_out_kl(model, method, bits, scheme).mean())
                for method in ("rtn", "mse", "gptq", "awq")
            }
            print(family, group, seed, bits, kl)
            assert kl["gptq"] < 0.7 * kl["rtn"]
