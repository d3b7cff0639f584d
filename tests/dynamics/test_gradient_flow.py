"""The gradient-flow analyzer against float64 NumPy over the gradients themselves, in loops that it must not change."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.core.moment import NotAvailable
from learnscope.dynamics.gradient_flow import GradientFlowAnalyzer
from learnscope.dynamics.saved import SavedError
from learnscope.findings import Cuts
from learnscope.model.selection import SelectionError


class Net(nn.Module):
    """Batch norm and dropout, an embedding tied to the head, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 6))
        self.unused = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.norm(self.embed(ids))))  # type: ignore[no-any-return]


def made(seed: int = 0) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model = Net()
    model.norm.eval()  # frozen on purpose
    model.body[0].bias.requires_grad_(False)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def batch() -> Tensor:
    return torch.randint(0, 11, (16,))


def norm_of(gradients: list[Tensor]) -> float:
    return float(np.sqrt(sum((g.numpy().astype(np.float64) ** 2).sum() for g in gradients)))


def layers_of(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """By hand: the module that owns the parameter, a tied one under its first name."""
    owners: dict[str, list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        owners.setdefault(name.rpartition(".")[0], []).append(p)
    return owners


def trained(
    epochs: int, batches: int, analyzer: Any = None, model: Net | None = None, optimizer: Any = None
) -> tuple[Net, dict[tuple[int, int], dict[str, Any]]]:
    """A loop, and by hand what the analyzer should have seen at every batch."""
    if model is None:
        model, optimizer = made()
    seen = {}
    if analyzer is True:
        analyzer = GradientFlowAnalyzer(model)
    for epoch in range(epochs):
        for number in range(batches):
            ids = batch()
            loss = F.cross_entropy(model(ids), ids)
            optimizer.zero_grad()
            loss.backward()
            if analyzer is not None:
                told = analyzer.track_batch_gradients(loss, epoch, number)
                layers = {
                    layer: [p for p in owned if p.grad is not None]
                    for layer, owned in layers_of(model).items()
                    if any(p.grad is not None for p in owned)
                }
                norms = {layer: norm_of([p.grad for p in owned]) for layer, owned in layers.items()}  # type: ignore[misc]
                ratios = {layer: norms[layer] / norm_of([p.detach() for p in owned]) for layer, owned in layers.items()}
                seen[epoch, number] = {"told": told, "norms": norms, "ratios": ratios, "loss": float(loss.detach())}
            optimizer.step()
    return model, seen


def test_every_number_of_every_batch() -> None:
    _, seen = trained(2, 3, True)
    for (epoch, number), one in seen.items():
        told = one["told"]
        assert (told["epoch"], told["batch"]) == (epoch, number)
        assert told["loss"] == one["loss"]
        assert told["layer_norms"] == pytest.approx(one["norms"], rel=1e-6)
        assert told["gradient_to_weight"] == pytest.approx(one["ratios"], rel=1e-6)
        assert told["total_norm"] == pytest.approx(math.hypot(*one["norms"].values()), rel=1e-6)
        assert told["without_gradient"] == ["unused.weight", "unused.bias"]
        assert told["reasons"] == {}
        assert told["first_nonfinite"] is None
    # a tied weight has one gradient, under its first name; the embedding's unused rows are what the head makes of them
    assert set(told["layer_norms"]) == {"embed", "norm", "body.0", "body.3"}
    assert [seen[key]["told"]["step"] for key in seen] == [1, 2, 3, 4, 5, 6]


def test_a_tracked_loop_is_bit_identical_to_one_that_is_not(tmp_path: Path) -> None:
    plain, _ = trained(2, 4)
    after = random.random(), np.random.rand(), torch.rand(1)
    model, optimizer = made()
    analyzer = GradientFlowAnalyzer(model, run=tmp_path / "run")
    flags = [module.training for module in model.modules()]
    tracked, _ = trained(2, 4, analyzer, model, optimizer)
    assert (random.random(), np.random.rand(), torch.rand(1)) == after
    analyzer.compute_epoch_statistics(1)
    analyzer.analyze_gradient_flow()
    analyzer.plot_gradient_flow(tmp_path / "figures")
    for (name, a), b in zip(plain.state_dict().items(), tracked.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for p, q in zip(plain.parameters(), tracked.parameters(), strict=True):
        assert p.requires_grad == q.requires_grad
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)  # type: ignore[arg-type]
    assert [module.training for module in model.modules()] == flags
    hooks = [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._backward_hooks.values())]
    assert not hooks
    assert all(not p._backward_hooks for p in model.parameters())


def test_statistics_of_an_epoch() -> None:
    model, optimizer = made()
    analyzer = GradientFlowAnalyzer(model)
    _, seen = trained(3, 5, analyzer, model, optimizer)
    for epoch in (1, 0, 2):  # in any order, also of epochs that are long past
        told = analyzer.compute_epoch_statistics(epoch)
        assert (told["epoch"], told["batches"]) == (epoch, 5)
        own = [one for (of, _), one in seen.items() if of == epoch]
        for layer, numbers in told["layers"].items():
            values = np.array([one["norms"][layer] for one in own])
            assert numbers["mean_norm"] == pytest.approx(values.mean(), rel=1e-6)
            assert numbers["std_norm"] == pytest.approx(values.std(ddof=1), rel=1e-4)
            assert (numbers["min_norm"], numbers["max_norm"]) == pytest.approx((values.min(), values.max()), rel=1e-6)
            ratios = [one["ratios"][layer] for one in own]
            assert numbers["gradient_to_weight"] == pytest.approx(np.mean(ratios), rel=1e-6)
            assert (numbers["measurements"], numbers["not_finite"]) == (5, 0)
        losses = [one["loss"] for one in own]
        assert told["loss"]["mean"] == pytest.approx(np.mean(losses))
        assert told["loss"]["std"] == pytest.approx(np.std(losses, ddof=1))
        totals = [math.hypot(*one["norms"].values()) for one in own]
        assert told["total_norm"]["max"] == pytest.approx(max(totals), rel=1e-6)
        assert told["vanishing_layers"] == []
        assert told["exploding_layers"] == []
        assert told["reason"] is None


def ladder(layers: int = 6) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))


def give(model: nn.Sequential, sizes: list[float]) -> None:
    """Gradients of these gradient-to-weight ratios, the same in every entry."""
    for layer, size in zip(model, sizes, strict=True):
        weight = math.hypot(*(float(p.detach().double().norm()) for p in layer.parameters()))
        for p in layer.parameters():
            p.grad = torch.full_like(p, size * weight / math.sqrt(12))


@pytest.mark.parametrize(
    ("sizes", "vanishing", "exploding"),
    [
        ([1e-9, 1, 1, 1, 1, 1], ["0"], []),
        ([1e-9, 2e-8, 2e-7, 2e-7, 2e-7, 2e-7], ["0"], []),
        ([1e-9] * 6, [], []),  # no size is too small by itself
        ([1e-3, 1, 1, 1, 1, 1], ["0"], []),  # 100 times below the median
        ([0.05, 1, 1, 1, 1, 1], [], []),
        ([1, 1, 150, 1, 1, 1], [], ["2"]),  # 100 times above the median
        ([6e5, 12e5, 6e5, 6e5, 6e5, 6e5], [], []),  # nor too large
        ([1, 1, 60, 1, 1, 1], [], []),
        ([0, 1, 1, 1, 1, 1], [], []),  # exactly zero is another statement
    ],
)
def test_which_layers_vanish_and_explode(sizes: list[float], vanishing: list[str], exploding: list[str]) -> None:
    model = ladder()
    analyzer = GradientFlowAnalyzer(model)
    for number in range(5):
        give(model, sizes)
        told = analyzer.track_batch_gradients(None, 0, number)
        assert list(told["gradient_to_weight"].values()) == pytest.approx(sizes, rel=1e-5)
        assert math.isnan(told["loss"])
    for told in (analyzer.compute_epoch_statistics(0), analyzer.analyze_gradient_flow()):
        assert (told["vanishing_layers"], told["exploding_layers"]) == (vanishing, exploding)
    kinds = {finding.kind for finding in analyzer.analyze_gradient_flow()["findings"]}
    assert ("vanishing" in kinds) == bool(vanishing)
    assert "exploding" not in kinds  # it neither left its past nor grows from layer to layer
    assert ("zero_gradients" in kinds) == (0 in sizes)


def test_three_in_a_row_may_lie_in_two_epochs() -> None:
    model, low, fine = ladder(), [1e-9] + [1.0] * 5, [1.0] * 6
    analyzer = GradientFlowAnalyzer(model)
    story = {0: [fine, low], 1: [low], 2: [low, fine], 3: [fine, low], 4: [fine, fine, low]}
    found: dict[int, Any] = {}
    for epoch, batches in story.items():
        for number, sizes in enumerate(batches):
            give(model, sizes)
            analyzer.track_batch_gradients(1.0, epoch, number)
        found[epoch] = analyzer.compute_epoch_statistics(epoch)["vanishing_layers"]
    # two low ones by the end of epoch 1; the third comes in epoch 2; later ones are single
    assert found == {0: None, 1: [], 2: ["0"], 3: [], 4: []}
    again = {epoch: analyzer.compute_epoch_statistics(epoch)["vanishing_layers"] for epoch in story}
    assert again == found
    assert analyzer.analyze_gradient_flow()["vanishing_layers"] == ["0"]


def test_too_few_measurements_are_no_verdict() -> None:
    model = ladder()
    analyzer = GradientFlowAnalyzer(model, cuts=Cuts(measurements=2))
    give(model, [1e-9] + [1.0] * 5)
    analyzer.track_batch_gradients(torch.tensor(2.0), 0, 0)
    told = analyzer.compute_epoch_statistics(0)
    assert told["vanishing_layers"] is None
    assert told["exploding_layers"] is None
    assert told["reason"] == "1 measurement so far, and a layer must be beyond a cut for 2 in a row"
    assert math.isnan(told["layers"]["0"]["std_norm"])
    assert told["layers"]["0"]["measurements"] == 1
    analyzer.track_batch_gradients(torch.tensor(2.0), 0, 1)
    assert analyzer.compute_epoch_statistics(0)["vanishing_layers"] == ["0"]


def test_cuts_are_options() -> None:
    model = ladder()
    analyzer = GradientFlowAnalyzer(model, cuts=Cuts(off_median=10))
    for number in range(3):
        give(model, [0.05, 1, 40, 1, 1, 1])
        analyzer.track_batch_gradients(None, 0, number)
    told = analyzer.analyze_gradient_flow()
    assert (told["vanishing_layers"], told["exploding_layers"]) == (["0"], ["2"])


def test_gradients_that_are_not_finite() -> None:
    model = ladder(4)
    analyzer = GradientFlowAnalyzer(model)
    for number, bad in enumerate((None, math.nan, math.inf, None)):
        give(model, [1.0] * 4)
        if bad is not None:
            model[1].weight.grad[0, 0] = bad  # type: ignore[index]
        told = analyzer.track_batch_gradients(math.nan if bad else 1.0, 0, number)
        assert math.isnan(told["layer_norms"]["1"]) == (bad is not None)
        assert math.isnan(told["total_norm"]) == (bad is not None)
        assert told["first_nonfinite"] == ("1.weight" if bad is not None else None)
    assert told["reasons"] == {}
    numbers = analyzer.compute_epoch_statistics(0)
    assert (numbers["layers"]["1"]["measurements"], numbers["layers"]["1"]["not_finite"]) == (2, 2)
    assert numbers["layers"]["1"]["max_norm"] == pytest.approx(told["layer_norms"]["1"], rel=1e-6)
    assert (numbers["layers"]["0"]["measurements"], numbers["layers"]["0"]["not_finite"]) == (4, 0)
    assert numbers["total_norm"]["not_finite"] == 2
    assert numbers["loss"]["not_finite"] == 2
    kinds = [finding.kind for finding in analyzer.analyze_gradient_flow()["findings"]]
    assert "nonfinite" in kinds[0]


def test_reasons_name_what_is_not_finite() -> None:
    model = ladder(4)
    analyzer = GradientFlowAnalyzer(model)
    give(model, [1.0] * 4)
    model[2].bias.grad[0] = math.inf  # type: ignore[index]
    assert analyzer.track_batch_gradients(None, 0, 0)["reasons"] == {"model": "inf", "2": "inf"}


@pytest.mark.parametrize("when", ["before any backward", "after zero_grad"])
def test_missing_gradients_are_refused_and_leave_nothing(when: str, tmp_path: Path) -> None:
    model, optimizer = made()
    analyzer = GradientFlowAnalyzer(model, run=tmp_path / "run")
    if when == "after zero_grad":
        F.cross_entropy(model(batch()), batch()).backward()
        optimizer.zero_grad()
    with pytest.raises(NotAvailable, match=r"after loss.backward\(\) and before"):
        analyzer.track_batch_gradients(None, 0, 0)
    with pytest.raises(NotAvailable, match="none has been tracked"):
        analyzer.compute_epoch_statistics(0)
    with pytest.raises(NotAvailable, match="no batch has been tracked"):
        analyzer.analyze_gradient_flow()
    with pytest.raises(NotAvailable, match="no batch has been tracked"):
        analyzer.plot_gradient_flow(tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_an_epoch_without_tracked_batches_is_refused_by_name() -> None:
    model = ladder()
    analyzer = GradientFlowAnalyzer(model)
    give(model, [1.0] * 6)
    analyzer.track_batch_gradients(None, 3, 0)
    with pytest.raises(NotAvailable, match=r"no batch of epoch 4 was tracked \(tracked are 3\)"):
        analyzer.compute_epoch_statistics(4)


@pytest.mark.parametrize(("arguments", "error"), [
    ((None, -1, 0), ValueError), ((None, 0, 1.5), TypeError), ((None, True, 0), ValueError),
    ((torch.zeros(2), 0, 0), ValueError), ((None, "1", 0), TypeError),
])  # fmt: skip
def test_bad_arguments_are_refused(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    model = ladder()
    analyzer = GradientFlowAnalyzer(model)
    give(model, [1.0] * 6)
    with pytest.raises(error):
        analyzer.track_batch_gradients(*arguments)
    with pytest.raises(NotAvailable):
        analyzer.analyze_gradient_flow()


def test_a_batch_that_is_tracked_again_replaces_what_it_was() -> None:
    model = ladder()
    analyzer = GradientFlowAnalyzer(model)
    for size in (5.0, 1.0):
        for number in range(3):
            give(model, [size] * 6)
            analyzer.track_batch_gradients(size, 2, number)
    told = analyzer.compute_epoch_statistics(2)
    assert told["batches"] == 3
    assert told["layers"]["0"]["gradient_to_weight"] == pytest.approx(1.0, rel=1e-5)
    assert told["loss"]["mean"] == 1.0
    assert analyzer.analyze_gradient_flow()["batches"] == 3


def test_tracked_layers_by_any_name() -> None:
    model, _ = made()
    compiled = torch.compile(model)
    names = {
        "body": {"body.0", "body.3"}, "body.3": {"body.3"}, "body.0.weight": {"body.0"}, "_orig_mod.body.3": {"body.3"},
        "": {"embed", "norm", "body.0", "body.3"}, "embed": {"embed"}, "head": {"embed"},  # tied: the same weight
        "module.norm": {"norm"},
    }  # fmt: skip
    ids = batch()
    F.cross_entropy(model(ids), ids).backward()
    for wrapped in (model, compiled, nn.DataParallel(model)):
        for name, layers in names.items():
            told = GradientFlowAnalyzer(wrapped, track_layers=[name]).track_batch_gradients(None, 0, 0)  # type: ignore[arg-type]
            assert set(told["layer_norms"]) == layers, (type(wrapped).__name__, name)
    weight = model.body[0].weight.grad
    one = GradientFlowAnalyzer(model, "body.0.weight").track_batch_gradients(None, 0, 0)
    assert one["total_norm"] == one["layer_norms"]["body.0"] == pytest.approx(norm_of([weight]), rel=1e-6)


def test_a_module_that_stands_in_two_places_has_two_names() -> None:
    model, _ = made()
    model.again = model.body[3]  # type: ignore[assignment]
    ids = batch()
    F.cross_entropy(model(ids), ids).backward()
    told = GradientFlowAnalyzer(model, ["again"]).track_batch_gradients(None, 0, 0)
    assert set(told["layer_norms"]) == {"body.3"}


def test_what_is_not_tracked_is_neither_read_nor_missed() -> None:
    model, _ = made()
    analyzer = GradientFlowAnalyzer(model, ["body.3", "unused"])
    for number in range(3):
        ids = batch()
        model.zero_grad()
        F.cross_entropy(model(ids), ids).backward()
        model.embed.weight.grad = torch.full_like(model.embed.weight, math.nan)
        told = analyzer.track_batch_gradients(None, 0, number)
        assert told["without_gradient"] == ["unused.weight", "unused.bias"]
        assert told["first_nonfinite"] is None
    findings = analyzer.analyze_gradient_flow()["findings"]
    assert [(finding.kind, list(finding.scopes)) for finding in findings] == [("no_gradient", ["unused"])]


@pytest.mark.parametrize(("names", "said"), [
    (["bodi.3"], "has no layer, module or parameter 'bodi.3'; near: body.3"), (["body.2"], "without parameters"),
    ([3], "3 is a int"), (["body.3", "nothing at all"], "near: "),
])  # fmt: skip
def test_unknown_names_are_refused_at_once(names: Any, said: str) -> None:
    with pytest.raises(SelectionError, match=said):
        GradientFlowAnalyzer(made()[0], names)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="tracks nothing"):
        GradientFlowAnalyzer(made()[0], [])
    with pytest.raises(TypeError, match="Did you mean 'track_layers'"):
        GradientFlowAnalyzer(made()[0], track_layer=["body"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"not a torch.nn.Module"):
        GradientFlowAnalyzer({"a": 1})  # type: ignore[arg-type]


def test_a_model_in_place_of_another() -> None:
    """Checkpoints of one training are other objects with the same names."""
    analyzer = GradientFlowAnalyzer(ladder(), ["1", "2"])
    for number, size in enumerate((1.0, 2.0, 4.0)):
        analyzer.model = ladder()
        give(analyzer.model, [size] * 6)
        told = analyzer.track_batch_gradients(None, 0, number)
        assert told["gradient_to_weight"] == pytest.approx({"1": size, "2": size}, rel=1e-5)


@pytest.mark.parametrize("tracked", [None, ["body"]])
def test_saved_and_loaded_it_goes_on_bit_for_bit(tmp_path: Path, tracked: list[str] | None) -> None:
    model, optimizer = made()
    whole = GradientFlowAnalyzer(model, tracked, cuts=Cuts(off_median=7.0))
    trained(2, 3, whole, model, optimizer)
    other, optimizer = made()
    half = GradientFlowAnalyzer(other, tracked, cuts=Cuts(off_median=7.0))
    trained(1, 3, half, other, optimizer)
    again = GradientFlowAnalyzer.load(half.save(tmp_path / "analyzer.pkl"), other)
    assert again.cuts == half.cuts
    assert repr(again.compute_epoch_statistics(0)) == repr(half.compute_epoch_statistics(0))
    for number in range(3):
        ids = batch()
        loss = F.cross_entropy(other(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        again.track_batch_gradients(loss, 1, number)
        optimizer.step()
    assert repr(again.analyze_gradient_flow()) == repr(whole.analyze_gradient_flow())
    assert repr(again.compute_epoch_statistics(1)) == repr(whole.compute_epoch_statistics(1))
    drop = ["time", "cost"]
    assert again.run.frame().drop(columns=drop).equals(whole.run.frame().drop(columns=drop))
    with pytest.raises(SavedError, match="lacks"):
        GradientFlowAnalyzer.load(tmp_path / "analyzer.pkl", ladder())


def test_the_figures(tmp_path: Path) -> None:
    model = ladder(8)
    analyzer = GradientFlowAnalyzer(model)
    for epoch in range(3):
        for number in range(4):
            sizes = [1e-9, *(10.0 ** (-6 + i) for i in range(6)), 0.0]
            give(model, [size * (1 + number) for size in sizes])
            if (epoch, number) == (1, 1):
                model[3].weight.grad[0, 0] = math.nan  # type: ignore[index]
            analyzer.track_batch_gradients(1.0 / (1 + epoch), epoch, number)
    paths = analyzer.plot_gradient_flow(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["gradient_flow.png", "gradient_profile.png"]
    for path in paths:
        with Image.open(path) as image:
            colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
        assert image.width >= 1200
        assert (np.abs(colours.astype(int) - [0xD5, 0x5E, 0x00]).sum(1) < 12).sum() > 200, "what vanishes is marked"
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in analyzer.plot_gradient_flow(tmp_path / "new" / "folder")] == first


def test_the_figures_of_one_batch_of_one_layer(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    analyzer = GradientFlowAnalyzer(model)
    model(torch.ones(1, 2)).sum().backward()
    analyzer.track_batch_gradients(None, 0, 0)
    assert all(path.stat().st_size > 5_000 for path in analyzer.plot_gradient_flow(tmp_path))


def test_a_run_folder_holds_it_all(tmp_path: Path) -> None:
    import learnscope as ls

    model, optimizer = made()
    analyzer = GradientFlowAnalyzer(model, run=tmp_path / "run")
    trained(2, 3, analyzer, model, optimizer)
    run = ls.open_run(tmp_path / "run")
    assert len(list(run.records("GradientFlow"))) == 6
    assert run.frame("Loss", "batch")["value"].tolist() == [0, 1, 2, 0, 1, 2]
    assert repr(analyzer.compute_epoch_statistics(0)) == repr(
        GradientFlowAnalyzer.load(analyzer.save(tmp_path / "a"), model).compute_epoch_statistics(0)
    )
