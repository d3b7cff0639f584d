"""The tracker against features captured by hand, over checkpoints, on models and data that make it hard."""

from __future__ import annotations

import copy
import io
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from learnscope.core.moment import NotAvailable
from learnscope.dynamics.feature_evolution import FeatureEvolutionTracker
from learnscope.findings.features.feature_course import transitions
from learnscope.model.data import DataError
from learnscope.model.guard import guard
from learnscope.quantities.features import FeatureEvolution
from learnscope.reading.gather import Series
from learnscope.reading.jumps import fewest_values
from learnscope.report.features.evolution import EpochFeatures, draw_numbers, draw_plane, project
from learnscope.tensor.features.similarity import unbiased_cka
from model.examples.one_by_one import state
from probes.reference import tiny_gpt2, tokens


class Net(nn.Module):
    """Dropout, batch norm, and a part that is frozen in eval mode on purpose."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer1 = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5))
        self.layer2 = nn.Linear(12, width)
        self.layer3 = nn.Linear(width, 3)
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer3(self.layer2(self.layer1(x)).tanh())


def labelled(n: int = 120, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def data(n: int = 120, seed: int = 1) -> TensorDataset:
    return TensorDataset(*labelled(n, seed))


def checkpoints(n: int) -> dict[int, nn.Module]:
    model, loader = Net(), DataLoader(data(), batch_size=20)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    kept: dict[int, nn.Module] = {0: copy.deepcopy(model)}
    for epoch in range(10, 10 * n, 10):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        kept[epoch] = copy.deepcopy(model)
    return kept


def features_of(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda _m, _i, out: kept.append(out.detach()))
    with torch.no_grad(), guard(model):
        model(x)
    handle.remove()
    return kept[0]


def test_numbers_over_checkpoints_that_are_loaded_into_the_tracker() -> None:
    kept, (x, y) = checkpoints(4), labelled()
    tracker = FeatureEvolutionTracker(model=Net(), layer_names=["layer1", "layer2"], device=None)
    loader = DataLoader(data(), batch_size=32, shuffle=True)
    found = {}
    for epoch, checkpoint in kept.items():
        tracker.model.load_state_dict(checkpoint.state_dict())
        found[epoch] = tracker.track_epoch(loader, epoch, sample_limit=100)
    rows = {epoch: features_of(model, "layer2", x[:100]) for epoch, model in kept.items()}
    for epoch, hidden in rows.items():
        expected = silhouette_score(hidden.double().numpy(), y[:100].numpy())
        assert found[epoch]["layer2"]["silhouette"] == pytest.approx(expected, rel=1e-6)
        assert found[epoch]["layer2"]["dimensions"] == 8
        np.testing.assert_allclose(
            tracker.run.arrays("FeatureEvolution", epoch)["features/layer2"], hidden.numpy(), atol=1e-6
        )
    assert found[30]["layer2"]["cka_previous"] == pytest.approx(unbiased_cka(rows[30], rows[20]), rel=1e-6)
    assert found[30]["layer2"]["cka_first"] == pytest.approx(unbiased_cka(rows[30], rows[0]), rel=1e-6)
    assert found[0]["layer2"]["cka_first"] is None

    analysis = tracker.analyze_evolution()
    assert list(analysis) == ["layer1", "layer2"]
    told = analysis["layer2"]["metrics"]["silhouette"]
    values = [found[epoch]["layer2"]["silhouette"] for epoch in kept]
    assert analysis["layer2"]["epochs"] == [0, 10, 20, 30]
    assert told["values"] == pytest.approx(values)
    assert (told["first"], told["last"]) == pytest.approx((values[0], values[-1]))
    assert told["change"] == pytest.approx(np.subtract(values[-1], values[0]))
    assert analysis["layer2"]["metrics"]["cka_first"]["reasons"] == {0: "the first measurement"}
    for layer in tracker.layer_names:
        far = [0.0, *(1 - float(found[epoch][layer]["cka_first"] or 0) for epoch in (10, 20, 30))]
        halfway = next(epoch for epoch, value in zip(kept, far, strict=True) if value >= far[-1] / 2)
        assert analysis[layer]["halfway_epoch"] == halfway
        assert f"by epoch {halfway}" in analysis[layer]["how"]
    places = {layer: analysis[layer]["halfway_epoch"] for layer in tracker.layer_names}
    for layer in tracker.layer_names:
        assert analysis[layer]["changed_first"] is (
            places[layer] == min(places.values()) and len(set(places.values())) > 1
        )
    assert tracker.detect_phase_transitions("layer2", metric="silhouette_score") == []
    answer = tracker.phase_transitions("layer2", "cka_first")
    assert (answer.n, answer.left_out) == (3, {0: "the first measurement"})
    assert answer.reason is not None
    assert "from 8 on" in answer.reason


class Branches(nn.Module):
    """Three layers that do not see each other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.early, self.late, self.still = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.early(x) + self.late(x) + self.still(x)


def test_which_layer_changed_first() -> None:
    tracker = FeatureEvolutionTracker(Branches(), ["late", "early", "still"])
    for epoch in range(6):
        for layer, at in ((tracker.model.early, 2), (tracker.model.late, 4)):
            if epoch == at:
                nn.init.normal_(layer.weight)
        tracker.track_epoch([labelled(60)], epoch)
    found = tracker.analyze_evolution()
    told = {layer: (one["halfway_epoch"], one["order"], one["changed_first"]) for layer, one in found.items()}
    assert told == {"late": (4, 2, False), "early": (2, 1, True), "still": (None, None, False)}
    assert found["still"]["how"] == "not in the order: hardly moved"
    fell = found["early"]["metrics"]["cka_first"]["last"]
    assert found["early"]["how"] == (
        f"CKA with its first features fell to {fell:.3f}; halfway, at {fell:.3f}, by epoch 2"
    )


class Counted(Dataset[Any]):
    """Notes what is read of it, and draws its inputs anew each time."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read.append(index)
        return torch.randn(6), index % 3


def test_the_same_examples_every_time_read_once_with_one_forward_a_batch() -> None:
    source, model = Counted(), Net()
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(source, batch_size=16, shuffle=True, generator=generator)
    sampler, random = generator.get_state(), torch.get_rng_state()
    tracker = FeatureEvolutionTracker(model, ["layer2"])
    forwards: list[int] = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    first = tracker.track_epoch(loader, 0, sample_limit=40)
    assert len(forwards) == 3  # 16 + 16 + 8
    assert source.read == list(range(48))  # whole batches, in order
    again = tracker.track_epoch(DataLoader(source, batch_size=16, shuffle=True), 1, sample_limit=40)
    assert (len(source.read), len(forwards)) == (48, 6)
    assert again["layer2"]["cka_first"] == pytest.approx(1, abs=1e-9)
    assert again["layer2"]["silhouette"] == first["layer2"]["silhouette"]
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(generator.get_state(), sampler)


def test_other_examples_are_never_compared_in_silence() -> None:
    tracker, loader = FeatureEvolutionTracker(Net(), ["layer2"]), DataLoader(data(), batch_size=30)
    tracker.track_epoch(loader, 0, sample_limit=60)
    tracker.track_epoch(loader, 1, sample_limit=50)
    assert tracker.reasons["layer2"]["cka_previous"] == "then there were 60 examples, now 50"
    tracker.track_epoch(data(seed=9), 2, sample_limit=50)
    assert tracker.reasons["layer2"]["cka_previous"] == "then there were as many examples, but not these"
    tracker.track_epoch(data(seed=9), 3, sample_limit=50)  # equal examples of another object
    assert set(tracker.reasons["layer2"]) == {"cka_first"}
    assert tracker.analyze_evolution()["layer2"]["how"] == "not in the order: not measured at every step"
    everything = tracker.track_epoch(loader, 4, sample_limit=5000)
    assert everything["layer2"]["linear_probe_examples"] == 120
    assert tracker.track_epoch(loader, 5, sample_limit=None)["layer2"]["cka_previous"] == pytest.approx(1, abs=1e-9)


def test_the_model_is_left_as_it_was_and_can_be_copied_and_saved() -> None:
    model = Net().train()
    model.layer1[1].eval()
    x, y = labelled(30)
    F.cross_entropy(model(x), y).backward()
    before = state(model)
    one = FeatureEvolutionTracker(model, ["layer1", "layer2"])
    two = FeatureEvolutionTracker(model, ["layer2"], pooling="last")
    numbers = [tracker.track_epoch([(x, y)], 0)["layer2"] for tracker in (one, two)]
    assert numbers[0] == numbers[1]
    copy.deepcopy(model)
    torch.save(model, io.BytesIO())  # a hook of ours could not be pickled
    assert state(model) == before
    one.remove_hooks()
    one.remove_hooks()
    assert one.track_epoch([(x, y)], 1)["layer2"]["cka_previous"] == pytest.approx(1, abs=1e-9)
    assert state(model) == before
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        one.track_epoch([(x[:, :3], y)], 2)
    assert state(model) == before
    assert one.track_epoch([(x, y)], 2)["layer2"]["silhouette"] == numbers[0]["silhouette"]  # 2 was not tracked


def test_another_model_may_take_the_place() -> None:
    tracker, loader = FeatureEvolutionTracker(Net(), ["layer2"]), data()
    tracker.track_epoch(loader, 0)
    torch.manual_seed(3)
    other = Net()
    nn.init.normal_(other.layer2.weight)
    tracker.model = other
    assert 0 < (tracker.track_epoch(loader, 1)["layer2"]["cka_previous"] or 0) < 0.999
    tracker.model = Net(width=5)
    assert tracker.track_epoch(loader, 2)["layer2"]["cka_first"] is not None  # CKA compares widths that differ
    tracker.model = nn.Sequential(nn.Linear(6, 3))
    with pytest.raises(KeyError, match="no layer 'layer2'"):
        tracker.track_epoch(loader, 3)


class Recurrent(nn.Module):
    """Gives out tuples and sequences, in bfloat16 if asked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tuples_and_sequences_are_pooled_as_stated(dtype: torch.dtype) -> None:
    model = Recurrent().to(dtype)
    x, y = torch.randn(40, 7, 6, dtype=dtype), torch.arange(40) % 3
    with torch.no_grad():
        hidden = model.rnn(x)[0].float().numpy()
    for pooling, expected in (("mean", hidden.mean(1)), ("last", hidden[:, -1]), ("cls", hidden[:, 0])):
        tracker = FeatureEvolutionTracker(model, ["rnn"], pooling=pooling)  # type: ignore[arg-type]
        tracker.track_epoch([(x, y)], 0)
        kept = tracker.run.arrays("FeatureEvolution", 0)["features/rnn"]
        assert kept.dtype == np.float32
        np.testing.assert_allclose(kept, expected, atol=1e-6)


def test_padded_sequences_of_a_language_model() -> None:
    model = tiny_gpt2()
    ids, mask = tokens(10, 8), torch.ones(10, 8, dtype=torch.int64)
    mask[:5, 5:] = 0
    tracker = FeatureEvolutionTracker(model, ["transformer.h.1"])
    tracker.track_epoch([{"input_ids": ids, "attention_mask": mask, "labels": ids}], 0)
    captured: list[Tensor] = []
    handle = model.transformer.h[1].register_forward_hook(
        lambda _m, _i, out: captured.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad(), guard(model):
        model(ids[:5, :5])
    handle.remove()
    kept = tracker.run.arrays("FeatureEvolution", 0)["features/transformer.h.1"]
    np.testing.assert_allclose(kept[:5], captured[0].mean(1).numpy(), atol=1e-5)
    assert tracker.reasons["transformer.h.1"]["silhouette"] == "an example has several targets, not one class"


def test_what_was_not_measured_says_why(tmp_path: Path) -> None:
    x, y = labelled(40)
    tracker = FeatureEvolutionTracker(Net(), ["layer2", "idle"])
    numbers = tracker.track_epoch([(x,)], 0)
    assert numbers["layer2"]["silhouette"] is None
    assert tracker.reasons["layer2"]["silhouette"] == "the holdout has no targets"
    assert numbers["layer2"]["effective_rank"] is not None
    assert set(tracker.reasons["idle"].values()) == {"did not run on these batches"}
    one = tracker.track_epoch([(x, torch.zeros(40).long())], 1)
    assert one["layer2"]["separability"] is None
    assert tracker.reasons["layer2"]["separability"] == "two classes are needed; there is one"
    with torch.no_grad():
        tracker.model.layer2.bias[0] = float("nan")
    broken = tracker.track_epoch([(x, y)], 2)
    assert broken["layer2"]["silhouette"] is None
    assert tracker.reasons["layer2"]["cka_first"] == "features are not finite"
    answer = tracker.phase_transitions("layer2", "effective_rank")
    assert answer.left_out == {2: "features are not finite"}
    assert tracker.analyze_evolution()["idle"]["how"].startswith("not in the order")
    [path] = tracker.visualize_evolution("layer2", tmp_path)
    assert path.exists()
    with pytest.raises(NotAvailable, match="did not run on these batches"):
        tracker.visualize_evolution("idle", tmp_path)
    assert tracker.plot_metrics_evolution("idle", tmp_path)[0].exists()


def test_one_epoch_is_an_answer_of_its_own(tmp_path: Path) -> None:
    tracker = FeatureEvolutionTracker(Net(), ["layer2"])
    tracker.track_epoch(data(), 7)
    analysis = tracker.analyze_evolution()["layer2"]
    assert analysis["epochs"] == [7]
    assert analysis["metrics"]["rankme"]["change"] is None
    assert analysis["halfway_epoch"] is None
    assert analysis["how"] == "1 epoch: there is nothing to compare with"
    assert tracker.detect_phase_transitions("layer2") == []
    assert tracker.visualize_evolution("layer2", tmp_path)[0].exists()
    assert tracker.plot_metrics_evolution("layer2", tmp_path)[0].exists()


def test_refusals_name_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"no layer 'layer4'.*layer\d"):
        FeatureEvolutionTracker(Net(), ["layer2", "layer4"])
    with pytest.raises(TypeError, match="a list of names"):
        FeatureEvolutionTracker(Net(), "layer2")
    with pytest.raises(TypeError, match="Did you mean 'layer_names'"):
        FeatureEvolutionTracker(Net(), layer_name=["layer2"])  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="mean, last, cls"):
        FeatureEvolutionTracker(Net(), pooling="max")  # type: ignore[arg-type]
    tracker = FeatureEvolutionTracker(Net(), ["layer2"], keep_features=False)
    for call in (
        tracker.analyze_evolution, lambda: tracker.detect_phase_transitions("layer2"),
        lambda: tracker.plot_metrics_evolution("layer2", tmp_path),
    ):  # fmt: skip
        with pytest.raises(NotAvailable, match="call track_epoch"):
            call()
    tracker.track_epoch(data(), 0)
    with pytest.raises(ValueError, match=r"metric 'silhouete' is not known. Did you mean 'silhouette'.*cka_first"):
        tracker.detect_phase_transitions("layer2", metric="silhouete")
    with pytest.raises(ValueError, match=r"layer 'layer1' is not known.*layer2"):
        tracker.detect_phase_transitions("layer1")
    with pytest.raises(ValueError, match=r"method 'tsne' is not known.*pca, umap"):
        tracker.visualize_evolution("layer2", tmp_path, method="tsne")
    with pytest.raises(NotAvailable, match="keep_features=True"):
        tracker.visualize_evolution("layer2", tmp_path)
    with pytest.raises(ValueError, match="epoch 0 has been tracked already"):
        tracker.track_epoch(data(), 0)
    for wrong in (-1, True):
        with pytest.raises(ValueError, match="from 0"):
            tracker.track_epoch(data(), wrong)
    with pytest.raises(TypeError, match="whole number"):
        tracker.track_epoch(data(), 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sample_limit=0.*from 1"):
        tracker.track_epoch(data(), 1, sample_limit=0)
    with pytest.raises(DataError, match="empty"):
        tracker.track_epoch([], 1)
    assert tracker.run.last_step == 0


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("silhouette_score", "silhouette"), ("silhouette", "silhouette"), ("class_separability", "separability"),
        ("linear_probe_accuracy", "linear_probe"), ("effective_rank", "effective_rank"), ("rankme", "rankme"),
        ("cka_previous", "cka_previous"), ("cka_first", "cka_first"),
    ],
)  # fmt: skip
def test_every_name_of_a_metric_is_that_metrics_series(asked: str, name: str) -> None:
    """A model whose features change at epoch 6 and at no other: each number that changes then is found then."""
    torch.manual_seed(0)
    x, y = labelled(90)
    tracker = FeatureEvolutionTracker(Net(), ["layer2"])
    values = []
    for epoch in range(12):
        with torch.no_grad():
            tracker.model.layer2.weight.copy_(torch.zeros(8, 12))
            noise = torch.randn(8, 12, generator=torch.Generator().manual_seed(epoch))
            tracker.model.layer2.weight[:, : 12 if epoch < 6 else 2] = 1.0 + noise[:, : 12 if epoch < 6 else 2]
        values.append(tracker.track_epoch([(x, y)], epoch)["layer2"][name])
    known = [(epoch, value) for epoch, value in enumerate(values) if value is not None]
    expected = transitions(
        Series(np.array([e for e, _ in known]), np.array([v for _, v in known]), [None] * len(known))
    )
    assert tracker.detect_phase_transitions("layer2", metric=asked) == expected.epochs
    found = tracker.phase_transitions("layer2", asked)
    assert (found.p_value, found.n, found.trend) == (expected.p_value, len(known), expected.trend)
    if name in ("effective_rank", "rankme"):
        assert found.epochs == [6]


def test_a_number_jumps_where_it_does() -> None:
    generator = np.random.default_rng(0)
    steps = np.arange(0, 100, 5)
    values = np.where(steps < 60, 0.2, 0.7) + 0.02 * generator.normal(size=20)
    values[3] = np.nan
    status = [None] * 20
    status[3] = "features are not finite"  # type: ignore[call-overload]
    found = transitions(Series(steps, values, status))
    assert found.epochs == [60]
    assert found.p_value == pytest.approx(0.001)
    assert (found.n, found.left_out, found.reason) == (19, {15: "features are not finite"}, None)
    flat = transitions(Series(steps, generator.normal(size=20), [None] * 20))
    assert flat.epochs == []
    assert flat.reason is not None
    assert "above alpha=0.01" in flat.reason
    assert transitions(Series(steps, np.full(20, 0.5), [None] * 20)).reason == "all values are equal"
    empty = transitions(Series(steps[:0], values[:0], []))
    assert (empty.epochs, empty.n) == ([], 0)
    assert empty.reason is not None
    assert empty.reason.startswith("0 values")
    for n in (fewest_values() - 1, fewest_values()):
        step = transitions(Series(np.arange(n), (np.arange(n) >= 4).astype(float), [None] * n))
        assert (step.epochs == [4]) is (n >= fewest_values())


def test_the_plane_is_common_to_all_epochs() -> None:
    generator = np.random.default_rng(0)
    for n, d in ((30, 5), (12, 80), (9, 1)):
        parts = [generator.normal(size=(n, d)) + place for place in range(3)]
        found = project(parts, "pca")
        reference = PCA(min(2, d)).fit(np.concatenate(parts))
        expected = reference.transform(np.concatenate(parts))
        points = np.concatenate(found.points)
        for axis in range(expected.shape[1]):
            sign = np.sign(points[:, axis] @ expected[:, axis])
            np.testing.assert_allclose(points[:, axis], sign * expected[:, axis], atol=1e-9)
        assert found.explained is not None
        shares = [*reference.explained_variance_ratio_, 0.0][:2]
        np.testing.assert_allclose(found.explained, shares, atol=1e-12)
        assert [len(part) for part in found.points] == [n] * 3
    still = project([np.ones((4, 3))], "pca")
    assert still.explained == (0.0, 0.0)
    assert not np.concatenate(still.points).any()


def picture(path: Path) -> Any:
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def shown(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_visible()]


def test_a_panel_has_the_points_of_its_epoch_in_the_colours_of_their_classes() -> None:
    generator = np.random.default_rng(0)
    labels = np.array([0, 1, 2, -100] * 5)
    kept = [EpochFeatures(epoch, generator.normal(size=(20, 7)), labels) for epoch in range(11)]
    figure = draw_plane(kept, "layer2", "pca")
    panels = shown(figure)
    assert [axes.get_title(loc="left") for axes in panels] == [f"epoch {epoch}" for epoch in (0, 2, 4, 6, 8, 10)]
    plane = project([kept[epoch].features for epoch in (0, 2, 4, 6, 8, 10)], "pca")
    for axes, points in zip(panels, plane.points, strict=True):
        np.testing.assert_allclose(axes.collections[0].get_offsets(), points)
        colours = [to_hex(colour).upper() for colour in axes.collections[0].get_facecolors()]
        assert colours == ["#0072B2", "#E69F00", "#009E73", "#C4C4C4"] * 5
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["class 0", "class 1", "class 2"]
    assert plane.explained is not None
    facts = " ".join(text.get_text() for text in figure.texts)
    assert (
        f"20 examples; 6 of 11 epochs; one plane fitted to all panels together, with {sum(plane.explained):.0%}"
        in facts
    )
    alone = draw_plane([EpochFeatures(3, kept[0].features, None)], "", "pca")
    assert len(shown(alone)) == 1
    assert not alone.legends
    assert len(shown(draw_plane(kept[:4], "x", "pca"))) == 4


def test_panels_have_the_numbers_that_were_measured_and_their_changes() -> None:
    epochs = np.arange(0, 90, 10)
    level = np.where(epochs < 50, 0.1, 0.8)
    courses = {
        FeatureEvolution.silhouette: Series(epochs, level, [None] * 9),
        FeatureEvolution.effective_rank: Series(epochs, np.where(epochs == 20, np.nan, 3.0), [None] * 9),
        FeatureEvolution.linear_probe: Series(epochs, np.full(9, np.nan), ["float targets are no classes"] * 9),
    }
    changes = {FeatureEvolution.silhouette: transitions(courses[FeatureEvolution.silhouette])}
    figure = draw_numbers(courses, changes, "layer2")
    panels = {axes.get_title(loc="left"): axes for axes in shown(figure)}
    assert list(panels) == ["silhouette score", "directions in use"]
    lines = {line.get_label(): line for line in panels["silhouette score"].get_lines()}
    np.testing.assert_array_equal(lines["silhouette score"].get_xydata(), np.stack([epochs, level], 1))
    [mark] = [line for label, line in lines.items() if label.startswith("jumps")]
    assert mark.get_xdata() == [50, 50]
    [rank] = panels["directions in use"].get_lines()
    assert 20 not in rank.get_xdata()
    facts = " ".join(text.get_text() for text in figure.texts).replace("-\n", "-").replace("\n", " ")
    assert "jumps: silhouette at 50" in facts
    assert "no linear probe, held-out accuracy: float targets are no classes" in facts
    assert "no unbiased linear CKA: not measured" in facts


def test_figures_are_written_where_they_should_be(tmp_path: Path) -> None:
    tracker = FeatureEvolutionTracker(Net(), ["layer2"])
    tracker.track_epoch([(labelled()[0],)], 0)
    paths = tracker.visualize_evolution("layer2", save_dir=tmp_path / "new" / "folder", method="pca")
    assert paths == [tmp_path / "new" / "folder" / "features_layer2_pca.png"]
    paths += tracker.plot_metrics_evolution("layer2", save_dir=str(tmp_path))
    assert paths[1] == tmp_path / "metrics_layer2.png"
    assert all(picture(path).shape[1] == 1500 and picture(path).std() > 1 for path in paths)


def test_many_classes_and_names_that_no_file_may_have(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"a/b é": nn.Linear(6, 4)})
            self.head = nn.Linear(4, 40)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.parts["a/b é"](x))

    x = torch.randn(120, 6)
    tracker = FeatureEvolutionTracker(Named(), ["parts.a/b é"])
    tracker.track_epoch([(x, torch.arange(120) % 40)], 0)
    assert tracker.visualize_evolution("parts.a/b é", tmp_path) == [tmp_path / "features_parts.a_b_é-3ecd20_pca.png"]
    assert tracker.plot_metrics_evolution("parts.a/b é", tmp_path) == [tmp_path / "metrics_parts.a_b_é-3ecd20.png"]


def test_umap_is_asked_for_by_its_name_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = FeatureEvolutionTracker(Net(), ["layer2"])
    tracker.track_epoch(data(), 0)
    monkeypatch.setitem(sys.modules, "umap", None)  # as if it were not installed
    with pytest.raises(ImportError, match="pip install umap-learn"):
        tracker.visualize_evolution("layer2", tmp_path, method="umap")
    assert not list(tmp_path.iterdir())


@pytest.mark.soak
def test_umap_draws_where_it_is_installed(tmp_path: Path) -> None:
    tracker = FeatureEvolutionTracker(Net(), ["layer2"])
    for epoch in range(2):
        tracker.track_epoch(data(), epoch)
    if find_spec("umap") is None:
        with pytest.raises(ImportError, match="pip install umap-learn"):
            tracker.visualize_evolution("layer2", tmp_path, method="umap")
        return
    random = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    [path] = tracker.visualize_evolution("layer2", tmp_path, method="umap")
    first = picture(path)
    tracker.visualize_evolution("layer2", tmp_path, method="umap")
    assert (picture(path) == first).all()
    assert (np.random.get_state()[1] == random).all()  # type: ignore[union-attr]
    few = FeatureEvolutionTracker(Net(), ["layer2"])
    few.track_epoch(data(10), 0)
    with pytest.raises(ValueError, match="more than 15 points"):
        few.visualize_evolution("layer2", tmp_path, method="umap")


@pytest.fixture
def half_tracked() -> tuple[dict[int, nn.Module], FeatureEvolutionTracker]:
    kept = checkpoints(4)
    tracker = FeatureEvolutionTracker(Net(), ["layer1", "layer2"], pooling="last")
    for epoch in (0, 10):
        tracker.model.load_state_dict(kept[epoch].state_dict())
        tracker.track_epoch(data(), epoch)
    return kept, tracker


def test_a_saved_tracker_goes_on_as_if_it_had_not_been_saved(half_tracked: Any, tmp_path: Path) -> None:
    kept, tracker = half_tracked
    path = tmp_path / "tracker.pkl"
    tracker.save(path)
    loaded = FeatureEvolutionTracker.load(path, Net())
    assert loaded.layer_names == ["layer1", "layer2"]
    with pytest.raises(ValueError, match="epoch 10 has been tracked"):
        loaded.track_epoch(data(), 10)
    for one in (tracker, loaded):
        one.model.load_state_dict(kept[20].state_dict())
    assert loaded.track_epoch(data(), 20) == tracker.track_epoch(data(), 20)
    assert loaded.reasons == tracker.reasons == {"layer1": {}, "layer2": {}}
    assert loaded.analyze_evolution() == tracker.analyze_evolution()
    for place, one in enumerate((tracker, loaded)):
        one.visualize_evolution("layer2", tmp_path / str(place))
    pictures = [picture(tmp_path / str(place) / "features_layer2_pca.png") for place in (0, 1)]
    assert (pictures[0] == pictures[1]).all()
    with pytest.raises(KeyError, match="no layer 'layer1'"):
        FeatureEvolutionTracker.load(path, nn.Sequential(nn.Linear(6, 3)))


def test_the_run_folder_has_it_all(tmp_path: Path) -> None:
    import learnscope as ls

    tracker = FeatureEvolutionTracker(Net(), ["layer2"], run=tmp_path / "run")
    numbers = [tracker.track_epoch(data(), epoch)["layer2"]["rankme"] for epoch in (0, 5)]
    tracker.close()
    run = ls.open_run(tmp_path / "run")
    assert run.frame("FeatureEvolution", "rankme")["value"].tolist() == numbers
    assert run.frame("FeatureEvolution", "rankme")["epoch"].tolist() == [0, 5]
    assert run.arrays("FeatureEvolution", 5)["features/layer2"].shape == (120, 8)
    assert run.manifest["status"] == "finished"
