"""AutoRound by its own package: what it tuned is what is kept, and nothing that it leaves out goes unsaid."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

from learnscope.model.bits import autoround
from learnscope.model.bits.autoround import tuned_by_autoround
from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.quantise import quantised_weights
from learnscope.model.bits.quantised_units import find_units
from learnscope.tensor.bits.quantize import QuantiseError, Scheme, dequantize
from model.bits.quantised_models import build
from model.bits.trained_models import calibration, held_out_kl, trained

INSTALLED = importlib.util.find_spec("auto_round") is not None


@pytest.mark.skipif(INSTALLED, reason="auto-round is installed")
def test_without_the_package_it_is_refused_at_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(QuantiseError, match=r"pip install 'learnscope\[autoround\]'"):
        QuantisedCopies(model, Scheme(), "autoround", Calibration.collect(model, [torch.randn(2, 4)]))


def test_data_and_schemes_that_it_cannot_take_are_refused() -> None:
    model = build("sequential")
    with pytest.raises(QuantiseError, match="input_ids"):
        tuned_by_autoround(model, [torch.randn(2, 6)], 4, Scheme())
    with pytest.raises(QuantiseError, match="another granularity than 'tensor'"):
        tuned_by_autoround(model, [], 4, Scheme(granularity="tensor"))


@pytest.mark.soak
@pytest.mark.skipif(not INSTALLED, reason="auto-round is not installed")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_weights_are_those_that_the_package_tuned(
    family: str, symmetric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the tuned model's own weights; better than round-to-nearest; the model and the generators untouched."""
    import auto_round

    made: list[nn.Module] = []

    def watched(*args: Any, **options: Any) -> Any:
        compressor = auto_round_class(*args, **options)
        quantize = compressor.quantize

        def kept() -> Any:
            found = quantize()
            made.append(found[0])
            return found

        compressor.quantize = kept
        return compressor

    auto_round_class = auto_round.AutoRound
    monkeypatch.setattr(auto_round, "AutoRound", watched)
    model = trained(family, 64)
    before, state = {n: p.clone() for n, p in model.state_dict().items()}, torch.get_rng_state()
    for bits in (3, 4):
        for scheme in (Scheme(symmetric), Scheme(symmetric, "group", 32)):
            kl = {m: float(held_out_kl(model, m, bits, scheme).mean()) for m in ("rtn", "gptq", "autoround")}
            print(family, bits, scheme.granularity, symmetric, kl)
            assert kl["autoround"] < kl["rtn"]
            ours = tuned_by_autoround(model, calibration(model).batches, bits, scheme)
            assert len(ours) == sum(len(unit.tensors) for unit in find_units(model))
            theirs = dict(made[-1].named_parameters())
            for unit in find_units(model):
                for tensor in unit.tensors:
                    made_here = ours[tensor.name]
                    assert made_here is not None
                    restored = tensor.as_stored(dequantize(made_here))
                    torch.testing.assert_close(restored, theirs[tensor.name].detach(), rtol=1e-5, atol=1e-7)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.soak
@pytest.mark.skipif(not INSTALLED, reason="auto-round is not installed")
def test_a_layer_that_it_leaves_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when it is asked for: other units can be had."""
    model = trained("llama", 48)
    monkeypatch.setattr(autoround, "ITERATIONS", 1)
    unit = find_units(model)[0]
    copies = QuantisedCopies(model, Scheme(), "autoround", calibration(model))
    with pytest.raises(QuantiseError, match=r"q_proj\.weight: auto-round leaves a weight of shape \(48, 48\) as it is"):
        quantised_weights(model, {unit.name: 4}, Scheme(), [unit], copies)
