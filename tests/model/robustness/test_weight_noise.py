"""Noise on weights, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from learnscope.model.bits.quantised_units import find_units
from learnscope.model.guard import guard
from learnscope.model.robustness.weight_noise import channel_noise, noised, numbers_for, rounding_noise
from model.robustness.attacked import language_models


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_gaussian_noise_is_relative_to_the_channel() -> None:
    weight = torch.randn(6, 4000, generator=seeded(1)) * torch.tensor([0.1, 1, 2, 5, 1e-3, 0])[:, None]
    noise = channel_noise(weight, 0.2, numbers_for(weight, "weight_noise", seeded())).double().numpy()
    rms = np.sqrt((weight.double().numpy() ** 2).mean(1))
    assert (noise[5] == 0).all()
    for row in range(5):
        assert stats.kstest(noise[row], "norm", args=(0, 0.2 * rms[row])).pvalue > 0.01
    assert abs(np.corrcoef(noise[0], weight[0].numpy())[0, 1]) < 0.05


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rounding_noise_is_even_over_a_step_of_the_scale(bits: int) -> None:
    weight = torch.randn(3, 4000, generator=seeded(2)) * torch.tensor([0.1, 3, 0])[:, None]
    noise = rounding_noise(weight, bits, numbers_for(weight, "quantisation_noise", seeded())).double().numpy()
    values = weight.double().numpy()
    for row in range(2):
        top, low, high = np.abs(values[row]).max(), values[row].min(), values[row].max()
        step = top / (2 ** (bits - 1) - 1) if bits > 3 else (high - low) / (2**bits - 1)
        assert stats.kstest(noise[row], "uniform", args=(-step / 2, step)).pvalue > 0.01
        assert np.abs(noise[row]).max() <= step / 2 * (1 + 1e-6)
    assert (noise[2] == 0).all()


@pytest.mark.parametrize("kind", ["weight_noise", "quantisation_noise"])
def test_the_channel_of_a_conv1d_is_its_second_dimension_and_weights_come_back(kind: str) -> None:
    torch.manual_seed(0)
    model = language_models()["gpt2"]()
    weight = dict(model.named_parameters())["transformer.h.0.mlp.c_fc.weight"]
    weight.data[:, 3] *= 1000  # one output channel, whose noise must not reach the others
    weight.data[0, 0] = -0.0
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    units = find_units(model)
    with pytest.raises(RuntimeError, match="stop"), guard(model):
        with noised(model, units, kind, 0.1 if kind == "weight_noise" else 4, seed=1):  # type: ignore[arg-type]
            moved = {name: (p.detach() - before[name]) for name, p in model.named_parameters()}
            raise RuntimeError("stop")
    change = moved["transformer.h.0.mlp.c_fc.weight"].abs().amax(0)
    assert change[3] > 100 * change[[0, 1, 2, 4]].max() > 0
    assert not moved["transformer.wte.weight"].any()
    assert not moved["transformer.h.0.ln_1.weight"].any()
    for name, p in model.named_parameters():
        assert p.detach().numpy().tobytes() == before[name].numpy().tobytes(), name


def test_seeds_differ_and_repeat() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    own = model[0].weight.detach().clone()
    found = []
    for seed in (1, 1, 2):
        with noised(model, find_units(model, embeddings=True), "weight_noise", 0.1, seed):
            found.append(model[0].weight.detach().clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(model[0].weight, own)
