"""Sparse quality against outputs computed by hand, and the weights after anything that may go wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.model.guard import guard
from learnscope.model.updates.variants import Reverting
from learnscope.probes.outputs.columns import ZEROS
from learnscope.tensor.updates.masks import Rule

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.ReLU(), nn.Linear(20, 3))


def measure(
    model: nn.Module,
    holdout: Any = ((X, Y),),
    *,
    steps: int = 1,
    rate: float = 1e-2,
    optimizer: Any = torch.optim.Adam,
    autocast: bool = False,
    **options: Any,
) -> tuple[Mapping[tuple[str, float], dict[str, float]], dict[str, Tensor], ls.Run]:
    """Train a little under watch: numbers by mask and threshold, the weights before, and the run."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    opt = optimizer(model.parameters(), lr=rate)
    probe = ls.SparseQuality(every=steps, **options)
    with ls.watch(model, opt, probes=[probe], holdout=list(holdout), strict=True) as w:
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(X).float(), Y)
                opt.zero_grad()
                loss.backward()
                opt.step()
    found: dict[tuple[str, float], dict[str, float]] = {}
    frame = w.run.frame("SparseQuality")
    for row in frame[frame.step == steps].itertuples():
        found.setdefault((row.mask, row.threshold), {})[row.name] = row.value
    return found, before, w.run


def sparsely_updated(model: nn.Module, before: Mapping[str, Tensor], threshold: float) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.copy_(torch.where((p - before[name]).abs() <= threshold, before[name], p))
    return other


def by_hand(reference: Tensor, variant: Tensor) -> dict[str, float]:
    a, b = (x.detach().double().numpy().reshape(-1, x.shape[-1]) for x in (reference, variant))
    log_p, log_q = (x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)
                    for x in (a, b))  # fmt: skip
    kl = (np.exp(log_p) * (log_p - log_q)).sum(1)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {
        "kl": kl.mean(),
        "kl_median": np.median(kl),
        "kl_p99": np.percentile(kl, 99),
        "cosine": cosine.mean(),
        "mse": ((a - b) ** 2).mean(),
        "top1_agree": (a.argmax(1) == b.argmax(1)).mean(),
    }


@pytest.mark.parametrize("threshold", [0.009, 0.0105, 1.0])
@pytest.mark.parametrize("steps", [1, 3])
def test_outputs_are_those_of_the_sparsely_updated_model(threshold: float, steps: int) -> None:
    model = network()
    found, before, _ = measure(model, thresholds=[threshold], steps=steps, rate=5e-3 * steps)
    model.eval()
    other = sparsely_updated(model, before, threshold).eval()
    numbers = found["magnitude", threshold]
    for name, value in by_hand(model(X), other(X)).items():
        assert numbers[name] == pytest.approx(value, rel=1e-6, abs=1e-13), name
    right, now = (m(X).argmax(1) == Y for m in (model, other))
    assert numbers["broke"] == pytest.approx((right & ~now).double().mean().item())
    assert numbers["mended"] == pytest.approx((~right & now).double().mean().item())
    changes = torch.cat([(p - before[n]).abs().flatten() for n, p in model.named_parameters()])
    assert numbers["kept_share"] == (changes > threshold).double().mean().item()


def test_threshold_zero_is_exactly_nothing_also_with_dropout() -> None:
    """And beside it the control: without the update at all, the outputs do differ."""
    found, _, _ = measure(network(), thresholds=[0.0, 1e9], steps=2)
    for mask in ("magnitude", "random", "random_changed"):
        exact, nothing = found[mask, 0.0], found[mask, 1e9]
        assert (exact["kl"], exact["mse"], exact["cosine"], exact["top1_agree"]) == (0, 0, 1, 1)
        assert exact["kl_p99"] == 0
        assert nothing["kl"] > 1e-6
        assert nothing["kept_share"] == 0


def test_inside_the_users_autocast_the_exchanged_weights_are_the_ones_that_run() -> None:
    model = network()
    found, before, _ = measure(model, thresholds=[0.0, 1e9], autocast=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model.eval()
        expected = by_hand(model(X), sparsely_updated(model, before, 1e9).eval()(X))
    assert found["magnitude", 0.0]["kl"] == 0
    assert found["magnitude", 1e9]["kl"] == pytest.approx(expected["kl"], rel=1e-6) != 0


def test_baselines_keep_as_many_entries() -> None:
    model = network()
    model[0].requires_grad_(False)  # type: ignore[index]
    found, _, _ = measure(model, thresholds=[4e-4, 1e-3], rate=1e-2, optimizer=torch.optim.SGD)
    for threshold in (4e-4, 1e-3):
        shares = {mask: found[mask, threshold]["kept_share"] for mask in ("magnitude", "random", "random_changed")}
        assert len(set(shares.values())) == 1
        assert 0 < shares["magnitude"] < 0.3


def test_the_kept_half_of_the_changes_beats_a_random_half() -> None:
    """Changes of very different size: what the baselines are there to show."""
    model = network()
    found, *_ = measure(model, thresholds=[3e-3], rate=0.5, optimizer=torch.optim.SGD, steps=4)
    assert found["magnitude", 3e-3]["kl"] < 0.1 * found["random_changed", 3e-3]["kl"]


def test_a_baseline_can_be_left_out_and_a_wrong_one_is_refused() -> None:
    found, *_ = measure(network(), thresholds=[1e-3], baselines=["random_changed"])
    assert {mask for mask, _ in found} == {"magnitude", "random_changed"}
    found, *_ = measure(network(), thresholds=[1e-3], baselines=[])
    assert {mask for mask, _ in found} == {"magnitude"}
    with pytest.raises(ValueError, match="there is no baseline 'nothing'"):
        ls.SparseQuality(baselines=["nothing"])  # type: ignore[list-item]
    for thresholds in ([], [-1.0], [math.nan]):
        with pytest.raises(ValueError, match="thresholds"):
            ls.SparseQuality(thresholds=thresholds)


def test_one_forward_for_the_reference_and_one_for_every_variant() -> None:
    model = network()
    calls: list[bool] = []
    model.register_forward_hook(lambda m, *_: calls.append(m.training))
    measure(model, thresholds=[1e-4, 1e-3, 1e-2])
    assert calls.count(False) == 1 + 1 + 3 * 3  # with the trial of the task
    calls.clear()
    measure(model, thresholds=[1e-4, 1e-3, 1e-2], baselines=["random"])
    assert calls.count(False) == 1 + 7


def test_the_reference_is_shared_with_the_low_rank_quality() -> None:
    model = network()
    calls: list[bool] = []
    model.register_forward_hook(lambda m, *_: calls.append(m.training))
    opt = torch.optim.Adam(model.parameters())
    probes = [ls.SparseQuality(every=1, thresholds=[1e-3], baselines=[]), ls.LowRankQuality(every=1, ranks=[1])]
    with ls.watch(model, opt, probes=probes, holdout=[(X, Y)], strict=True):
        F.cross_entropy(model(X), Y).backward()
        opt.step()
    assert calls.count(False) == 1 + 1 + 1 + 2  # trial of the task, reference, one threshold, ranks 0 and 1


def test_several_batches_and_a_number_of_examples() -> None:
    parts = [(X[:5], Y[:5]), (X[5:], Y[5:])]
    whole, *_ = measure(network(), thresholds=[0.0101])
    split, *_ = measure(network(), parts, thresholds=[0.0101])
    # float32 outputs of 5 rows come from other kernels than those of 10: last digits, which a KL of small changes shows
    assert split["magnitude", 0.0101] == pytest.approx(whole["magnitude", 0.0101], rel=1e-5)
    few, before, _ = measure(model := network(), parts, thresholds=[0.0101], examples=7)
    expected = by_hand(model.eval()(X[:7]), sparsely_updated(model, before, 0.0101).eval()(X[:7]))
    assert few["magnitude", 0.0101]["kl"] == pytest.approx(expected["kl"], rel=1e-6)


@pytest.mark.parametrize("kind", ["yes or no", "images"])
def test_other_outputs(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "yes or no":
        model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        batch = (X, Y % 2)
    else:
        model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 1))
        batch = (torch.randn(2, 1, 5, 5), torch.randint(4, (2, 5, 5)))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    opt = torch.optim.Adam(model.parameters(), lr=0.05)
    with ls.watch(model, opt, probes=[ls.SparseQuality(every=1, thresholds=[1e9])], holdout=[batch], strict=True) as w:
        model(batch[0]).square().sum().backward()
        opt.step()
    logits = [m(batch[0]).detach().double() for m in (model, sparsely_updated(model, before, 1e9))]
    if kind == "yes or no":
        logits = [torch.cat([torch.zeros_like(z), z], 1) for z in logits]
    else:
        logits = [z.movedim(1, -1) for z in logits]
    p, q = (z.log_softmax(-1) for z in logits)
    frame = w.run.frame("SparseQuality", "kl")
    assert frame[frame["mask"] == "magnitude"].value.item() == pytest.approx(
        (p.exp() * (p - q)).sum(-1).mean().item(), rel=1e-5
    )


# nothing is left behind


class Stumbling(nn.Module):
    """Raises in the forward of the module that owns the parameter with a given index, at a given variant."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.owner: nn.Module | None = None
        self.variant = self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += not self.training
        for module in (*self.layers, self.norm, self.last):
            if module is self.owner and not self.training and self.calls == self.variant:
                raise RuntimeError("stumbled")
            x = module(x)
        return x


@pytest.mark.parametrize("variant", range(1, 11))
def test_an_error_at_every_parameter_leaves_the_weights_bit_identical(variant: int) -> None:
    """The forward of the reference and of each of the nine variants, stopped at each parameter's module in turn."""
    names = [name for name, _ in Stumbling().named_parameters()]
    for index in range(len(names)):
        model = Stumbling()
        model.owner = model.get_submodule(names[index].rpartition(".")[0])
        model.variant = variant + 1  # after the trial of the task
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        probe = ls.SparseQuality(every=1, thresholds=[1e-8, 9e-3, 1.0])
        with pytest.warns(ls.ProbeWarning, match="stumbled"):
            w = ls.watch(model, opt, probes=[probe], holdout=[(X, Y)])
            F.cross_entropy(model(X), Y).backward()
            kept = next(iter(w._loop.snapshots.values()))
            before = copy.deepcopy(model)
            twin = torch.optim.Adam(before.parameters(), lr=1e-2)
            for p, q in zip(before.parameters(), model.parameters(), strict=True):
                p.grad = None if q.grad is None else q.grad.clone()
            twin.step()
            opt.step()
            w.close()
        for (name, p), q in zip(model.named_parameters(), before.parameters(), strict=True):
            assert p.detach().numpy().tobytes() == q.detach().numpy().tobytes(), (index, name)
        # after the failed firing the snapshot has moved on to the weights, and holds no variant's
        assert all(torch.equal(kept.tensors[n], dict(model.named_parameters())[n]) for n in kept.names)
        assert model.training


def test_an_interrupt_from_the_keyboard_leaves_the_weights_too() -> None:
    model = network()
    old = {name: p.detach() + 1e-3 for name, p in model.named_parameters()}
    was = {name: p.detach().clone() for name, p in model.named_parameters()}

    def interrupted() -> None:
        with guard(model), Reverting(dict(model.named_parameters()), old) as weights:
            weights.apply(Rule(1.0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(torch.equal(p, was[name]) for name, p in model.named_parameters())


def test_a_sealed_moment_cannot_take_a_variant_for_the_reference() -> None:
    class Curious(ls.Probe):
        needs = frozenset({"previous", "holdout"})

        def measure(self, moment: ls.Moment) -> dict[str, float]:
            with moment.sealing():
                return {"loss": moment.holdout.losses.mean()}  # type: ignore[union-attr]

    model = network()
    opt = torch.optim.Adam(model.parameters())
    with pytest.raises(LookupError, match="was not computed before the weights were exchanged"):
        with ls.watch(model, opt, probes=[Curious()], holdout=[(X, Y)], strict=True):
            F.cross_entropy(model(X), Y).backward()
            opt.step()


def test_half_precision_weights_with_their_own_and_with_wider_snapshots() -> None:
    for dtype in ("native", "float32"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)).bfloat16()
        x = X.bfloat16()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        opt = torch.optim.SGD(model.parameters(), lr=0.05)
        probe = ls.SparseQuality(every=1, thresholds=[0.0, 1e-3], snapshot_dtype=dtype)
        with ls.watch(model, opt, probes=[probe], holdout=[(x, Y)], strict=True) as w:
            F.cross_entropy(model(x), Y).backward()
            opt.step()
        frame = w.run.frame("SparseQuality", "kl")
        kl = frame[frame["mask"] == "magnitude"].set_index("threshold").value
        expected = by_hand(model(x), sparsely_updated(model, before, 1e-3)(x))["kl"]
        assert kl[0.0] == 0
        assert kl[1e-3] == pytest.approx(expected, rel=1e-6)
        assert expected > 0


class Halved(nn.Module):
    """Whose outputs are all 0 for inputs of one sign."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x) * (x[:, :1] > 0)
        return found


def test_outputs_that_are_all_0_have_no_cosine_and_say_so() -> None:
    found, _, run = measure(Halved(), rate=1e-2)
    assert all(math.isnan(numbers["cosine"]) for numbers in found.values())
    assert set(run.frame("SparseQuality", "cosine").status) == {ZEROS}
    assert all(math.isfinite(numbers["mse"]) and math.isfinite(numbers["kl"]) for numbers in found.values())
    broken = Halved()
    broken.head.bias.data[0] = math.nan
    _, _, run = measure(broken, optimizer=torch.optim.SGD, rate=0.0)
    assert set(run.frame("SparseQuality", "cosine").status) == {"nan"}, "of outputs that are NaN"
