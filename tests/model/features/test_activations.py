"""Activation sites: which are found, and dead and saturated units counted by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.model.features.activation_functions import FUNCTIONS, MODULES, is_activation, of_module, slope, steepest
from learnscope.model.features.activation_sites import Site
from learnscope.model.features.activations import ActivationStatistics, collect_activations
from learnscope.model.features.units import Padding, pieces

TASK = ls.TupleTask()


def see(model: nn.Module, *batches: Any, task: ls.Task = TASK) -> ActivationStatistics:
    return collect_activations(model, task, [b if isinstance(b, (tuple, dict)) else (b,) for b in batches])


def by_name(seen: ActivationStatistics) -> dict[str, Site]:
    found = {site.name: site for site in seen.sites}
    assert len(found) == len(seen.sites)
    return found


def counts(site: Site) -> tuple[int, int, int]:
    return site.units, int(site.dead()), int(site.saturated())


def planted(activation: nn.Module, bias: list[float], scale: float = 1.0, features: int = 4) -> nn.Sequential:
    first = nn.Linear(features, len(bias))
    with torch.no_grad():
        first.weight.mul_(scale)
        first.bias.copy_(torch.tensor(bias))
    return nn.Sequential(first, activation, nn.Linear(len(bias), 3))


def test_planted_dead_relus_are_counted_exactly() -> None:
    model = planted(nn.ReLU(), [-1e3] * 5 + [1e3] * 4 + [0.0])
    site = by_name(see(model, torch.randn(64, 4)))["1"]
    assert counts(site) == (10, 5, 5)  # a dead ReLU is flat as well
    assert site.function == "ReLU"
    assert site.alive.tolist() == [False] * 5 + [True] * 5


def test_a_unit_that_fires_once_is_not_dead_but_saturated() -> None:
    """Dead is never; saturated is more than 95 %: 19 of 20 flat inputs are not more."""
    model = nn.Sequential(nn.ReLU())
    x = -torch.ones(20, 3)
    x[0, 1], x[:2, 2] = 1.0, 1.0
    site = by_name(see(model, x))["0"]
    assert site.alive.tolist() == [False, True, True]
    assert site.flat.tolist() == [20, 19, 18]
    assert counts(site) == (3, 1, 1)
    x = -torch.ones(21, 1)
    x[0] = 1.0
    assert counts(by_name(see(model, x))["0"]) == (1, 0, 1)  # 20 of 21 are


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Sigmoid()])
def test_planted_saturated_units_are_counted_exactly(activation: nn.Module) -> None:
    model = planted(activation, [30.0] * 3 + [-30.0] * 2 + [0.0] * 4, scale=0.5)
    assert counts(by_name(see(model, torch.randn(50, 4)))["1"]) == (9, 0, 5)


def phi(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def sigma(x: np.ndarray) -> np.ndarray:
    return special.expit(x)


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    c, u = np.sqrt(2 / np.pi), np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return 0.5 * (1 + np.tanh(u)) + 0.5 * x * (1 - np.tanh(u) ** 2) * c * (1 + 3 * 0.044715 * x * x)


DERIVATIVES: dict[Any, Any] = {
    nn.ReLU(): lambda x: (x > 0).astype(float),
    nn.GELU(): lambda x: special.ndtr(x) + x * phi(x),
    nn.GELU(approximate="tanh"): tanh_gelu,
    nn.SiLU(): lambda x: sigma(x) * (1 + x * (1 - sigma(x))),
    nn.Tanh(): lambda x: 1 - np.tanh(x) ** 2,
    nn.Sigmoid(): lambda x: sigma(x) * (1 - sigma(x)),
    nn.ELU(0.5): lambda x: np.where(x > 0, 1.0, 0.5 * np.exp(np.minimum(x, 0))),
    nn.LeakyReLU(0.001): lambda x: np.where(x > 0, 1.0, 0.001),
    nn.Softplus(): sigma,
    nn.Hardswish(): lambda x: np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, x / 3 + 0.5)),
    nn.Softsign(): lambda x: 1 / (1 + np.abs(x)) ** 2,
}


@pytest.mark.parametrize("activation", DERIVATIVES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_saturation_against_derivatives_in_float64(activation: nn.Module, dtype: torch.dtype) -> None:
    """By hand, on inputs that reach far to both sides; the maximum is looked for on a finer grid."""
    derivative = DERIVATIVES[activation]
    x = (torch.randn(400, 60, dtype=torch.float64) * 2 + torch.linspace(-12, 12, 60)).to(dtype)
    site = by_name(see(nn.Sequential(activation), x))["0"]
    steep = np.abs(derivative(np.linspace(-20, 20, 400_001))).max()
    flat = np.abs(derivative(x.double().numpy())) < 0.01 * steep
    assert site.flat.tolist() == flat.sum(0).tolist()
    assert int(site.saturated()) == int((flat.mean(0) > 0.95).sum())
    if not isinstance(activation, (nn.Softplus, nn.LeakyReLU, nn.Softsign)):
        assert 0 < int(site.saturated()) < 60  # else the comparison would say little
    out = activation(x).double().numpy()
    assert float(site.outputs.shape().kurtosis) == pytest.approx(stats.kurtosis(out.ravel()), rel=1e-9)
    assert float(site.outputs.shape().rms) == pytest.approx(np.sqrt((out**2).mean()), rel=1e-9)
    assert site.alive.tolist() == (out != 0).any(0).tolist()


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_every_activation_of_torch_has_a_slope(kind: Any) -> None:
    module = (kind(0.1, 0.0) if kind is nn.Threshold else kind()).eval()
    function = of_module(module).in_dtype(torch.float64)
    x = torch.tensor([-2.31, -0.43, 0.27, 0.88, 3.1], dtype=torch.float64)
    step = 1e-6
    expected = (module.double()(x + step) - module(x - step)).detach() / (2 * step)
    torch.testing.assert_close(slope(function, x), expected, rtol=1e-5, atol=1e-7)
    assert float(steepest(function, x, channels=False)) >= float(expected.abs().max()) * 0.99


def test_what_mixes_entries_is_no_activation() -> None:
    mixing = [nn.Softmax(-1), nn.GLU(), nn.LogSoftmax(-1), nn.Softmin(-1), nn.Softmax2d(), nn.MultiheadAttention(4, 2)]
    assert not any(map(is_activation, mixing))
    assert {"softmax", "glu"}.isdisjoint(FUNCTIONS)


class Functional(nn.Module):
    """One call of every spelling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(6, 8), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out = F.relu(h) + torch.relu(h) + h.relu() + F.relu_(h.clone()) + F.relu(h.clone(), inplace=True)
        out = out + F.gelu(h, approximate="tanh") + F.silu(h) + torch.tanh(h) + h.sigmoid() + F.leaky_relu(h, 0.2)
        out = out + F.elu(input=h, alpha=2.0) + torch.tanh(h.clone(), out=torch.empty_like(h)) + F.sigmoid(h)
        return out + torch.softmax(h, -1) + torch.sigmoid(self.gate)  # the last is of a weight


def test_functions_in_every_spelling_are_sites_of_the_running_module() -> None:
    model = nn.Sequential(Functional(), nn.Linear(8, 2))
    x = torch.randn(30, 6)
    with torch.no_grad():
        h = model[0].first(x)
    seen = see(model, x)
    found = by_name(seen)
    relus = ["0:relu", *(f"0:relu:{i}" for i in (2, 3, 4, 5))]
    others = ["0:gelu", "0:silu", "0:tanh", "0:tanh:2", "0:sigmoid", "0:sigmoid:2", "0:leaky_relu", "0:elu"]
    assert set(found) == {*relus, *others}
    assert seen.not_measured == []
    expected = {
        "0:gelu": F.gelu(h, approximate="tanh"), "0:elu": F.elu(h, 2.0), "0:tanh:2": torch.tanh(h),
        "0:leaky_relu": F.leaky_relu(h, 0.2),
    } | dict.fromkeys(relus, F.relu(h))  # fmt: skip
    for name, out in expected.items():
        shape = found[name].outputs.shape()
        assert float(shape.rms) == pytest.approx(float(out.double().square().mean().sqrt()), rel=1e-6), name
        assert found[name].units == 8
    assert {found[name].layer for name in found} == {"0"}
    for name in relus:  # also where the input is overwritten
        assert found[name].flat.tolist() == (h <= 0).sum(0).tolist()


def test_functions_of_the_model_itself_and_outside_of_it() -> None:
    class Outside(ls.TupleTask):
        def logits(self, model: nn.Module, batch: Any) -> Tensor:
            return torch.sigmoid(model(F.relu(batch[0])))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.first(x))

    found = by_name(see(Net(), torch.randn(4, 3), task=Outside()))
    assert list(found) == ["(root):relu"]
    assert found["(root):relu"].layer == "(root)"


def test_what_an_activation_module_calls_is_not_counted_again() -> None:
    from transformers.activations import ACT2FN

    for name, twin in (("gelu_new", nn.GELU(approximate="tanh")), ("quick_gelu", None), ("relu2", None)):
        model = nn.Sequential(nn.Linear(4, 6), ACT2FN[name])
        seen = see(model, torch.randn(9, 4))
        assert [site.name for site in seen.sites] == ["1"]
        if twin is not None:
            same = see(nn.Sequential(model[0], twin), torch.randn(9, 4))
            assert same.sites[0].function == "GELU"
    assert not is_activation(ACT2FN["linear"])


def test_a_reused_module_is_a_site_for_each_call() -> None:
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.act = nn.Linear(4, 6), nn.Linear(6, 5), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.b(self.act(self.a(x))))

    model = Reused()
    nn.init.constant_(model.b.bias, -1e3)
    seen = see(model, torch.randn(8, 4), torch.randn(8, 4))
    assert {name: counts(site)[:2] for name, site in by_name(seen).items()} == {"act": (6, 0), "act:2": (5, 5)}


def test_one_module_at_several_places_counts_where_it_is_used() -> None:
    act = nn.ReLU()
    model = nn.Sequential()
    model.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), act) for _ in range(3)))
    seen = see(model, torch.randn(5, 4))
    assert [(site.name, site.layer) for site in seen.sites] == [
        (f"layers.{i}.1", f"layers.{i}") for i in range(3)
    ]  # fmt: skip


def test_an_activation_in_place_is_read_before_it_writes() -> None:
    x = torch.randn(40, 4)
    for build in (lambda inplace: nn.ReLU(inplace), lambda inplace: nn.SiLU(inplace), lambda i: nn.ELU(inplace=i)):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 7), build(False))
        inplace = nn.Sequential(model[0], build(True))
        one, other = see(model, x), see(inplace, x)
        assert one.sites[0].flat.tolist() == other.sites[0].flat.tolist()
        assert torch.equal(one.sites[0].outputs.shape().rms, other.sites[0].outputs.shape().rms)
        before = one.outputs["0"], other.outputs["0"]
        assert torch.equal(before[0].shape().rms, before[1].shape().rms)  # the layer's output before the writing


class Conv(nn.Module):
    def __init__(self, dims: int = 2) -> None:
        super().__init__()
        kinds = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}
        conv, norm = kinds[dims]
        self.conv, self.norm, self.act, self.more = conv(1, 5, 3, padding=1), norm(5), nn.ReLU(), conv(5, 5, 1)
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.norm(self.conv(x)))
        return F.relu(self.more(h) + h).flatten(2).mean(2)  # a residual sum keeps the channels where they are


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_channels_are_the_units_of_convolutions(dims: int) -> None:
    model = Conv(dims).eval()
    with torch.no_grad():
        model.norm.bias[:2] = -1e3
        model.more.bias.copy_(torch.tensor([-1e3, 1e3, 1e3, 1e3, 1e3]))
    seen = by_name(see(model, torch.randn(6, 1, *[9] * dims)))
    assert counts(seen["act"])[:2] == (5, 2)
    assert counts(seen["(root):relu"])[:2] == (5, 1)
    assert int(seen["act"].inputs[0]) == 6 * 9**dims


def test_linear_layers_on_maps_have_their_units_last() -> None:
    """As in Swin and ConvNeXt: 4 dimensions, features last."""
    model = nn.Sequential(nn.Linear(3, 7), nn.GELU(), nn.LayerNorm(7), nn.Dropout(0.5), nn.ReLU())
    assert [site.units for site in see(model, torch.randn(2, 5, 6, 3)).sites] == [7, 7]
    # norms over whole maps and pooling leave channels where they are
    model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.LayerNorm([4, 6]), nn.MaxPool1d(2), nn.ReLU())
    assert see(model, torch.randn(3, 2, 6)).sites[0].units == 4
    # nothing says what these are
    assert see(nn.Sequential(nn.ReLU()), torch.randn(2, 3, 4, 5)).sites[0].units == 3
    assert see(nn.Sequential(nn.ReLU()), torch.randn(2, 3, 4)).sites[0].units == 4


def test_prelu_is_measured_channel_by_channel() -> None:
    model = nn.Sequential(nn.Conv1d(1, 3, 1, bias=False), nn.PReLU(3)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([1.0, 1.0, 1.0]).view(3, 1, 1))
        model[1].weight.copy_(torch.tensor([0.0, 0.5, 200.0]))
    x = torch.cat([-torch.rand(10, 1, 8) - 0.1, torch.rand(1, 1, 8) + 0.1])
    for dtype in (torch.float32, torch.bfloat16):
        site = by_name(see(model.to(dtype), x.to(dtype)))["1"]
        assert site.units == 3
        plain = by_name(see(nn.Sequential(model[1]), x.expand(-1, 3, -1).to(dtype)))["0"]  # no convolution says so
        assert (plain.units, plain.flat.tolist()) == (3, site.flat.tolist())
        # flat where 0 < 0.01·1; never; and on the positive side, where the slope is 1 < 0.01·200
        assert site.flat.tolist() == [80, 0, 8]


@pytest.mark.parametrize(
    ("shape", "dim", "applies"),
    [((2, 3, 5), 2, True), ((2, 3, 4, 5), 3, True), ((6, 5), 1, True), ((2, 3), 1, False), ((2, 3, 5), 1, False),
     ((2, 4, 5), 2, False), ((3, 2, 5), 2, False), ((6,), 0, False)],
)  # fmt: skip
def test_padding_applies_to_positions_only(shape: tuple[int, ...], dim: int, applies: bool) -> None:
    """[B, T, ...] and [B·T, F]; not [B, H] with H = T, not channels second, not positions first."""
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    padding = Padding.of(mask)
    assert padding is not None
    x = torch.arange(math.prod(shape)).reshape(shape).float()
    rows = padding.rows(x, dim)
    assert (rows is not None) is applies
    kept = torch.cat(list(pieces(x, dim, rows)))
    units = shape[dim]
    if applies:
        assert torch.equal(kept, x.reshape(2, 3, -1)[mask.bool()].reshape(-1, units))
    else:
        assert kept.numel() == x.numel()


def test_no_padding_where_nothing_is_hidden_or_known() -> None:
    assert Padding.of(torch.ones(2, 3)) is None
    assert Padding.of(torch.ones(2, 1, 3, 3)) is None
    assert Padding.of(None) is None


def test_two_batches_are_one_cut_in_two() -> None:
    model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 9), nn.ReLU()).double()
    with torch.no_grad():
        model[0].weight.mul_(20)
    x = torch.randn(50, 4).double()  # a float32 product depends on the size of its batch
    whole, cut = see(model, x), see(model, x[:13], x[13:])
    for a, b in zip(whole.sites, cut.sites, strict=True):
        assert a.name == b.name
        assert torch.equal(a.alive, b.alive)
        assert torch.equal(a.flat, b.flat)
        assert torch.equal(a.inputs, b.inputs)
        torch.testing.assert_close(a.outputs.shape().kurtosis, b.outputs.shape().kurtosis, rtol=1e-10, atol=1e-12)
    for layer, one in whole.outputs.items():
        other = cut.outputs[layer]
        torch.testing.assert_close(one.shape().rms, other.shape().rms, rtol=1e-10, atol=1e-12)


def test_nan_and_infinite_inputs() -> None:
    x = torch.full((20, 3), -5.0)
    x[:, 1] = torch.nan
    x[0, 2] = torch.inf
    site = see(nn.Sequential(nn.ReLU()), x).sites[0]
    assert site.inputs.tolist() == [20, 0, 20]
    assert site.alive.tolist() == [False, True, True]  # NaN is something
    assert counts(site) == (3, 1, 1)  # and has no slope: 19 of 20 are flat in the third
    shape = site.outputs.shape()
    assert (int(shape.nan), int(shape.inf)) == (20, 1)


def test_an_encoder_layer_of_torch_does_not_hide_its_activation() -> None:
    """In eval mode it would run as one fused kernel."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    assert [site.name for site in see(model, torch.randn(2, 4, 8)).sites] == ["layers.0:relu", "layers.1:relu"]


def test_outputs_are_those_of_the_layers_modules() -> None:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "max_position_embeddings": 8}
    model = BertForMaskedLM(BertConfig(vocab_size=30, num_hidden_layers=2, **sizes)).eval()
    ids = torch.randint(1, 30, (2, 8))
    seen = see(model, {"input_ids": ids}, task=ls.HuggingFaceTask())
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states
    for i in (0, 1):
        found = seen.outputs[f"bert.encoder.layer.{i}"].shape()
        flat = hidden[i + 1].double().numpy().ravel()
        assert float(found.kurtosis) == pytest.approx(stats.kurtosis(flat), rel=1e-6)
        assert float(found.rms) == pytest.approx(np.sqrt((flat**2).mean()), rel=1e-6)


def test_a_layer_that_does_not_run_has_no_output() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    outputs = see(Unused(), torch.randn(3, 2)).outputs
    assert outputs["idle"] is None
    assert outputs["used"].n == 6


def hooks_of(model: nn.Module) -> int:
    kinds = [kind for kind in vars(model) if "hooks" in kind]
    assert "_forward_hooks_always_called" in kinds
    return sum(len(getattr(module, kind) or ()) for module in model.modules() for kind in kinds)


def test_an_error_in_a_forward_leaves_nothing_behind() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ArithmeticError(f"no way with {tuple(x.shape)}")

    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), Broken())
    with pytest.raises(ArithmeticError, match="no way"):
        see(model, torch.randn(2, 3))
    assert hooks_of(model) == 0
    assert all(module.training for module in model.modules())
    assert torch.overrides._len_torch_function_stack() == 0
    assert hooks_of(nn.Sequential(model[0], model[1])) == 0


def test_an_error_that_the_model_catches_does_not_move_later_calls() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ArithmeticError

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.broken = nn.Sequential(Broken())

        def forward(self, x: Tensor) -> Tensor:
            try:
                self.broken(x)
            except ArithmeticError:
                return F.relu(x)
            return x

    assert [site.name for site in see(Careful(), torch.randn(2, 3)).sites] == ["(root):relu"]


def test_a_users_hooks_run_once_and_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    calls: list[int] = []
    model[1].register_forward_hook(lambda *_: calls.append(1))
    see(model, torch.randn(2, 3))
    assert calls == [1]
    assert hooks_of(model) == 1


def test_inputs_without_floats_are_named() -> None:
    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x.long()).float() + torch.sigmoid(x.sum())

    seen = see(Whole(), torch.randn(2, 3))
    assert seen.sites == []
    assert seen.not_measured == ["(root):relu: int64 is not floating-point", "(root):sigmoid: a single number"]


def test_inference_mode_and_autocast_around_it() -> None:
    model, x = nn.Sequential(nn.Linear(3, 40), nn.PReLU(40), nn.SELU(inplace=True)), torch.randn(5, 3)
    plain = see(model, x)
    with torch.inference_mode():
        inside = see(model, x, x)
    for a, b in zip(plain.sites, inside.sites, strict=True):
        assert (2 * a.flat).tolist() == b.flat.tolist()
        assert torch.equal(a.alive, b.alive)
    with torch.autocast("cpu", torch.bfloat16):  # the model's own numbers are in bfloat16, ours are not
        half = see(model, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = model[:2](x)
    assert y.dtype is torch.bfloat16
    assert float(half.sites[0].outputs.shape().mean) == pytest.approx(float(y.double().mean()), rel=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_part_is_named_and_the_rest_measured() -> None:
    model = nn.Sequential(nn.Linear(3, 4), torch.jit.script(nn.ReLU()), nn.Tanh())
    seen = see(model, torch.randn(5, 3))
    assert [site.name for site in seen.sites] == ["2"]
    assert seen.not_measured == ["1: a scripted module shows nothing"]


def test_a_width_that_changes_from_batch_to_batch() -> None:
    seen = see(nn.Sequential(nn.ReLU()), torch.randn(4, 3), torch.randn(4, 5))
    assert [(site.name, site.units) for site in seen.sites] == [("0", 3), ("0 (5 units)", 5)]


def test_a_large_tensor_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from learnscope.model.features import activation_functions

    model, x = nn.Sequential(nn.Conv2d(1, 6, 3), nn.SiLU()), torch.randn(7, 1, 9, 8)
    whole = see(model, x).sites[0]
    monkeypatch.setattr(activation_functions, "CHUNK", 50)
    parts = see(model, x).sites[0]
    assert torch.equal(whole.flat, parts.flat)
    assert torch.equal(whole.inputs, parts.inputs)
    torch.testing.assert_close(whole.outputs.shape().kurtosis, parts.outputs.shape().kurtosis, rtol=1e-10, atol=1e-12)
