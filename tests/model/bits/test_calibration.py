"""The inputs of weights: against the layers' own inputs in float64, for every kind of layer, and without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.packed import load_packed, save_packed
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.tensor.bits.methods import METHODS
from learnscope.tensor.bits.quantize import QuantiseError, Scheme, dequantize
from model.bits.quantised_models import TOKENS, build, inputs, outputs


def batches_of(family: str) -> list[Any]:
    given = inputs(family)
    return [given[""]] if "" in given else [given]


def seen_inputs(model: nn.Module, call: Any) -> dict[str, list[Tensor]]:
    """What each module was given, by hooks of our own."""
    seen: dict[str, list[Tensor]] = {}
    handles = [
        module.register_forward_pre_hook(lambda _m, args, path=path: seen.setdefault(path, []).extend(args[:1]))
        for path, module in model.named_modules()
        if path
    ]
    with torch.no_grad():
        call()
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("family", ["gpt2", "llama", "sequential", "bert", "vit"])
def test_second_moments_are_those_of_the_inputs(family: str) -> None:
    model = build(family)
    given = inputs(family)
    seen = seen_inputs(model, lambda: model(given[""]) if "" in given else model(**given))
    calibration = Calibration.collect(model, batches_of(family) * 2)
    compared = 0
    for unit in find_units(model, embeddings=True):
        for tensor in unit.tensors:
            statistics = calibration.of(tensor)
            if statistics is None:
                assert tensor.name in calibration.without
                continue
            if isinstance(model.get_submodule(tensor.module), nn.Conv2d):
                continue
            x = torch.cat([each.reshape(-1, each.shape[-1]) for each in seen[tensor.module]]).double()
            torch.testing.assert_close(statistics.gram.double(), 2 * x.T @ x, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(statistics.magnitude, 2 * x.abs().sum(0), rtol=1e-5, atol=1e-6)
            assert statistics.tokens == 2 * len(x)
            compared += 1
    assert compared >= 2
    assert calibration.passes == 1


def test_a_calibration_never_disturbs_the_model() -> None:
    model = build("gpt2").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = sum(len(module._forward_pre_hooks) for module in model.modules())
    state = torch.get_rng_state()
    Calibration.collect(model, batches_of("gpt2"))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) == hooks
    assert torch.equal(torch.get_rng_state(), state)


def test_little_room_takes_more_passes_and_gives_the_same_numbers() -> None:
    model = build("llama")
    whole, streamed = (Calibration.collect(model, batches_of("llama"), room=room) for room in (None, 1))
    for unit in find_units(model, embeddings=True):
        for tensor in unit.tensors:
            ours, theirs = streamed.of(tensor), whole.of(tensor)
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert torch.equal(ours.gram, theirs.gram)
    assert (whole.passes, streamed.passes) == (1, 3)  # two blocks and the head


def test_positions_that_are_masked_do_not_count() -> None:
    model = build("llama")
    mask = torch.ones_like(TOKENS)
    mask[1, 3:] = 0
    units = find_units(model)
    calibration = Calibration.collect(model, [{"input_ids": TOKENS, "attention_mask": mask}], units)
    short = Calibration.collect(model, [{"input_ids": TOKENS[:1]}, {"input_ids": TOKENS[1:, :3]}], units)
    for tensor in units[0].tensors:
        ours, theirs = calibration.of(tensor), short.of(tensor)
        assert ours is not None
        assert theirs is not None
        assert ours.tokens == theirs.tokens == 9
        torch.testing.assert_close(ours.gram, theirs.gram, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", [0, 1, "same"])
def test_patches_of_a_convolution(padding: Any) -> None:
    """W·(gram)·Wᵀ is the sum of squares of the convolution's own outputs, whatever the padding."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=padding, dilation=2, bias=False), nn.ReLU(), nn.Flatten(2))
    images = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    (unit,) = find_units(model)
    statistics = Calibration.collect(model, [images], [unit]).of(unit.tensors[0])
    assert statistics is not None
    weight = unit.tensors[0].as_matrix(model[0].weight.detach())
    outputs = model[0](images).detach().double()
    torch.testing.assert_close(statistics.output_error(weight), outputs.square().sum((0, 2, 3)), rtol=1e-5, atol=0)


def test_weights_without_inputs_are_named_with_the_reason() -> None:
    reasons = {
        family: Calibration.collect(build(family), batches_of(family)).without
        for family in ("gpt2", "conv", "lstm", "encoder", "mixtral")
    }
    assert "table of an embedding" in reasons["gpt2"]["transformer.wte.weight"]
    assert "ConvTranspose2d" in reasons["conv"]["up.weight"]
    assert "LSTM" in reasons["lstm"]["lstm.weight_ih_l0"]
    assert "MultiheadAttention" in reasons["encoder"]["layers.0.self_attn.out_proj.weight"]
    assert any("gate_up_proj" in name for name in reasons["mixtral"])


def test_one_input_for_several_weights_only_where_it_is_one() -> None:
    """Two layers that share an input on the first batch and not on the second."""

    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            other = x if self.calls == 1 else 2 * x
            found: Tensor = self.first(x) + self.second(other)
            return found

    model = Fickle()
    data = [torch.randn(4, 3), torch.randn(4, 3)]
    model.calls = 0
    calibration = Calibration.collect(model, data)
    assert calibration.passes == 2
    first, second = (calibration.of(unit.tensors[0]) for unit in find_units(model))
    assert first is not None
    assert second is not None
    x = torch.cat(data).double()
    torch.testing.assert_close(first.gram.double(), x.T @ x, rtol=1e-5, atol=1e-5)
    assert not torch.equal(first.gram, second.gram)


def test_nothing_to_calibrate_on_and_broken_inputs_are_refused_by_name() -> None:
    model = build("sequential")
    with pytest.raises(QuantiseError, match="no batches"):
        Calibration.collect(model, [])
    with pytest.raises(QuantiseError, match=r"0\.weight: its inputs .* NaN or Inf"):
        Calibration.collect(model, [torch.full((2, 6), float("nan"))])
    first, second = find_units(model)
    calibration = Calibration.collect(model, [torch.randn(2, 6)], [first])
    with pytest.raises(QuantiseError, match=r"2\.weight is in none of the units"):
        calibration.of(second.tensors[0])


def test_copies_by_method() -> None:
    model = build("sequential")
    tensor = find_units(model)[0].tensors[0]
    matrix = tensor.as_matrix(model.get_parameter(tensor.name).detach())
    plain, clipped = (QuantisedCopies(model, Scheme(), method) for method in ("rtn", "mse"))
    made = clipped.quantised(tensor, matrix, 3)
    assert torch.equal(clipped.of(tensor, matrix, 3), dequantize(made))
    assert clipped.made == 1
    errors = [float((copies.of(tensor, matrix, 3) - matrix).square().sum()) for copies in (clipped, plain)]
    assert errors[0] < errors[1]
    with pytest.raises(QuantiseError, match="method='best': 'rtn', 'mse'"):
        QuantisedCopies(model, Scheme(), "best")
    with pytest.raises(QuantiseError, match="method='gptq' is calibrated on data: give calibration="):
        QuantisedCopies(model, Scheme(), "gptq")


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(False, "group", 16, torch.float16)])
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.package is None])
@pytest.mark.parametrize("family", ["gpt2", "llama", "conv"])
def test_a_packed_file_has_the_promised_bytes_and_the_same_outputs(
    family: str, method: str, scheme: Scheme, tmp_path: Path
) -> None:
    model = build(family)
    units = find_units(model, embeddings=True)
    bits = {unit.name: (3, 4, 8, 16, 32)[place % 5] for place, unit in enumerate(units)}
    copies = QuantisedCopies(model, scheme, method, Calibration.collect(model, batches_of(family), units))
    with quantised(model, bits, scheme, units=units, copies=copies):
        expected = outputs(model, family)
    saved = save_packed(model, bits, scheme, tmp_path / "packed.safetensors", copies)
    assert saved.tensor_bytes == ledger(model, bits, copies.scheme, units).packed_bytes
    loaded = build(family)
    load_packed(saved.path, loaded)
    assert torch.equal(outputs(loaded, family), expected)
    assert not torch.equal(outputs(model, family), expected)
