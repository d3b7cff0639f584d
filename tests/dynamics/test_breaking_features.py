"""The feature tracker where it could go wrong: references of NumPy and scikit-learn, awkward layers, data and files."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import RidgeClassifierCV
from sklearn.metrics import silhouette_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import learnscope as ls
from dynamics.traces import watched
from learnscope.core.moment import NotAvailable
from learnscope.dynamics import FeatureEvolutionTracker

Floats = NDArray[np.float64]
Numbers = dict[str, float | None]


def hsic1(k: Floats, m: Floats) -> float:
    """The unbiased estimator of Song et al. with both matrices written out."""
    n = len(k)
    k, m = k * (1 - np.eye(n)), m * (1 - np.eye(n))
    ones = np.ones(n)
    middle = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    return float((np.trace(k @ m) + middle - 2 / (n - 2) * (ones @ k @ m @ ones)) / (n * (n - 3)))


def cka(x: Floats, y: Floats) -> float:
    k, m = x @ x.T, y @ y.T
    return hsic1(k, m) / float(np.sqrt(hsic1(k, k) * hsic1(m, m)))


def rank_of(x: Floats, epsilon: float) -> float:
    p = np.linalg.svd(x, compute_uv=False)
    p = p / p.sum() + epsilon
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def by_hand(x: Floats, y: NDArray[np.int64]) -> dict[str, float]:
    """Of features and classes, all that the tracker says of one epoch."""
    means = np.stack([x[y == c].mean(0) for c in np.unique(y)])
    sizes = np.bincount(np.unique(y, return_inverse=True)[1])
    which = np.unique(y, return_inverse=True)[1]
    apart = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    same = y[:, None] == y[None]
    kept = sizes[which] >= 5
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    probe = make_pipeline(StandardScaler(), RidgeClassifierCV(alphas=(1.0, 10.0, 100.0, 1e3, 1e4)))
    return {
        "silhouette": float(silhouette_score(x, y)),
        "separability": float((sizes[:, None] * (means - x.mean(0)) ** 2).sum() / ((x - means[which]) ** 2).sum()),
        "within_distance": float(apart[same & ~np.eye(len(x), dtype=bool)].mean()),
        "between_distance": float(apart[~same].mean()),
        "linear_probe": float((cross_val_predict(probe, x[kept], y[kept], cv=folds) == y[kept]).mean()),
        "linear_probe_examples": int(kept.sum()),
        "linear_probe_chance": float(sizes[sizes >= 5].max() / kept.sum()),
        "effective_rank": rank_of(x - x.mean(0), 0.0),
        "rankme": rank_of(x, 1e-7),
        "dimensions": x.shape[1],
    }


class Net(nn.Module):
    def __init__(self, width: int = 9) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.5))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def moved(model: nn.Module, by: float = 0.3) -> nn.Module:
    with torch.no_grad():
        for p in model.parameters():
            p += by * torch.randn_like(p)
    return model


def examples(n: int = 90, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, 5, generator=generator), torch.arange(n) % classes


def hidden(model: Net, x: Tensor) -> Floats:
    """The body in eval mode, in float64."""
    found: Tensor = copy.deepcopy(model).double().eval().body(x.double())
    return found.detach().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [2, 9, 150])
def test_every_number_of_every_epoch_by_hand(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, (x, y) = Net(width).to(dtype), examples()
    y = torch.where(torch.arange(90) < 3, 7, y)  # a class of three, too few for the probe
    tracker = FeatureEvolutionTracker(model, ["body"])
    seen: list[Floats] = []
    for epoch in range(3):
        moved(model)
        found = tracker.track_epoch(DataLoader(TensorDataset(x.to(dtype), y), 17, shuffle=True), epoch)["body"]
        seen.append(hidden(model, x))
        expected = by_hand(seen[-1], y.numpy())
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=tolerance)
        if epoch:
            assert found["cka_previous"] == pytest.approx(cka(seen[-1], seen[-2]), abs=1e-5)
            assert found["cka_first"] == pytest.approx(cka(seen[-1], seen[0]), abs=1e-5)
        else:
            assert found["cka_previous"] is None
            assert tracker.reasons["body"] == dict.fromkeys(("cka_previous", "cka_first"), "the first measurement")


def test_unbiased_where_the_biased_one_would_be_near_one() -> None:
    """Independent features, wider than there are examples."""
    x, y = examples(64)
    features: list[Floats] = []

    class Independent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = nn.Identity(), nn.Linear(512, 2)

        def forward(self, x: Tensor) -> Tensor:
            drawn = torch.randn(len(x), 512, dtype=torch.float64)
            features.append(drawn.numpy())
            return self.head(self.features(drawn).float())

    tracker = FeatureEvolutionTracker(Independent(), ["features"])
    torch.manual_seed(1)
    tracker.track_epoch([(x, y)], 0)
    torch.manual_seed(2)
    value = tracker.track_epoch([(x, y)], 1)["features"]["cka_first"]
    assert value is not None
    assert value == pytest.approx(cka(features[0], features[1]), abs=1e-6)
    assert abs(value) < 0.05
    # other examples are not compared, though there are as many
    assert tracker.track_epoch([(x + 1, y)], 2)["features"]["cka_first"] is None
    assert "not these" in tracker.reasons["features"]["cka_first"]


@pytest.mark.parametrize("n", [61, 500])
def test_features_that_are_all_the_same_have_no_rank_and_no_separation(n: int) -> None:
    """Means of equal numbers differ from them in their last digit, which must not be measured."""
    for seed in range(5):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 4)).double()
        nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
        model[0].bias.data = torch.randn(7, dtype=torch.float64)  # with all its digits
        tracker = FeatureEvolutionTracker(model, ["0"])
        x, y = examples(n)
        found = tracker.track_epoch([(x.double(), y)], 0)["0"]
        for name in ("effective_rank", "separability", "cka_first"):
            assert found[name] is None, name
            assert tracker.reasons["0"][name] == "features are the same for every example"
        assert found["within_distance"] == found["between_distance"] == 0


def test_classes_that_have_collapsed_to_points_have_no_finite_separability() -> None:
    torch.manual_seed(0)
    y = torch.arange(61) % 3
    tracker = FeatureEvolutionTracker(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3)), ["0"])
    found = tracker.track_epoch([(torch.eye(3)[y], y)], 0)["0"]
    assert found["separability"] is None
    assert "all have the same features" in tracker.reasons["0"]["separability"]
    assert found["within_distance"] == 0
    assert found["silhouette"] == 1
    assert found["linear_probe"] == 1


def test_a_large_offset_changes_nothing() -> None:
    torch.manual_seed(0)
    x, y = examples(200)

    class Offset(nn.Module):
        def __init__(self, offset: float) -> None:
            super().__init__()
            self.here, self.head, self.offset = nn.Identity(), nn.Linear(5, 4), offset

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.here(x + self.offset))

    whole = (x.double() * 2**20).round() / 2**20  # so that the offset itself costs no digits
    found = [FeatureEvolutionTracker(Offset(o).double(), ["here"]).track_epoch([(whole, y)], 0) for o in (0.0, 2.0**20)]
    for name in ("silhouette", "separability", "effective_rank", "within_distance", "linear_probe"):
        assert found[1]["here"][name] == pytest.approx(found[0]["here"][name], rel=1e-9), name


class Gives(nn.Module):
    def __init__(self, what: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Any:
        return self.what(x)


ODD: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda x: (None, x, x * 2), "dict": lambda x: {"hidden": x, "other": 1}, "none": lambda x: None,
    "number": lambda x: 7, "integers": lambda x: [x.long()], "bools": lambda x: x > 0, "complex": lambda x: x + 1j,
    "empty": lambda x: x[:0], "sum": lambda x: x.sum(), "transposed": lambda x: x.T, "nan": lambda x: x / 0 * 0,
}  # fmt: skip


def test_what_layers_may_give_out() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = nn.ModuleDict({name: Gives(what) for name, what in ODD.items()})
            self.twice, self.idle, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            for one in self.odd.values():
                one(x)
            return self.head(self.twice(self.twice(x)))

    torch.manual_seed(0)
    model, (x, y) = Odd(), examples()
    names = [*(f"odd.{name}" for name in ODD), "twice", "idle"]
    tracker = FeatureEvolutionTracker(model, names)
    found = tracker.track_epoch([(x, y)], 0)
    for name in ("odd.tuple", "odd.dict"):
        assert found[name]["silhouette"] == pytest.approx(silhouette_score(x.numpy(), y.numpy()), rel=1e-5)
    last = model.twice(model.twice(x)).detach().numpy()  # of two runs the last counts
    assert found["twice"]["silhouette"] == pytest.approx(silhouette_score(last, y.numpy()), rel=1e-5)
    reasons = {
        "none": "no tensor", "number": "no tensor", "integers": "int64", "bools": "bool", "complex": "complex",
        "empty": "[0, 5] for 90 examples", "sum": "single number", "transposed": "[5, 90] for 90 examples",
    }  # fmt: skip
    for name, reason in {**{f"odd.{name}": reason for name, reason in reasons.items()}, "idle": "did not run"}.items():
        assert set(found[name].values()) == {None}, name
        assert all(reason in said for said in tracker.reasons[name].values()), name
        assert len(tracker.reasons[name]) == len(found[name])
    assert {k for k, v in found["odd.nan"].items() if v is not None} == {"dimensions", "linear_probe_examples"}
    assert "not finite" in tracker.reasons["odd.nan"]["effective_rank"]


class Augmented(Dataset[tuple[Tensor, int]]):
    """Noise from every generator at every reading."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.read += 1
        return torch.randn(5) + random.random() + float(np.random.rand()) + i % 4, i % 4


def test_two_trackers_and_a_hook_of_the_users_on_a_model_in_training() -> None:
    torch.manual_seed(0)
    model, (x, y) = Net(), examples()
    model.train()
    model.body[1].eval()
    model.body[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    F.cross_entropy(model(x), y).backward()
    runs: list[int] = []
    handle = model.body.register_forward_hook(lambda *_: runs.append(1))
    data = Augmented()
    one, two = FeatureEvolutionTracker(model, ["body"]), FeatureEvolutionTracker(model, ["body", "head"])
    alone = FeatureEvolutionTracker(copy.deepcopy(model), ["body"])
    before = watched(model)
    for epoch in range(2):
        first, second = one.track_epoch(DataLoader(data, 16, shuffle=True), epoch), two.track_epoch([(x, y)], epoch)
        third = alone.track_epoch([(x, y)], epoch)
        assert second["body"] == third["body"]
        assert first["body"]["linear_probe_examples"] == 40
        if epoch:  # noise is not drawn anew: the same examples, an unchanged model
            assert first["body"]["cka_previous"] == pytest.approx(1.0, abs=1e-6)
    assert data.read == 40
    one.remove_hooks()
    assert watched(model) == before
    assert runs  # what the user has hooked still fires
    handle.remove()


def collate(items: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {"x": torch.stack([x for x, _ in items]), "labels": torch.stack([y for _, y in items])}


class ReadsDicts(ls.Task):
    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        found: Tensor = model(batch["x"])
        return found

    def targets(self, batch: Any) -> Tensor:
        found: Tensor = batch["labels"]
        return found


def test_loaders_of_all_kinds_bring_the_same_examples() -> None:
    torch.manual_seed(0)
    model, (x, y) = Net(), examples()
    data = TensorDataset(x, y)
    items = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    sources: dict[str, Any] = {
        "data set": data, "shuffled": DataLoader(data, 7, shuffle=True), "workers": DataLoader(data, 8, num_workers=1),
        "batches": [(x[:50], y[:50]), (x[50:], y[50:])], "subset": Subset(ls.IndexedDataset(data), range(90)),
        "dropping": DataLoader(data, 40, drop_last=True),
    }  # fmt: skip
    own = {"collated": DataLoader(data, 9, collate_fn=collate), "dicts": DataLoader(items, 11)}  # type: ignore[arg-type]
    found: dict[str, Numbers] = {}
    for name, source in {**sources, **own}.items():
        task = ReadsDicts() if name in own else None
        found[name] = FeatureEvolutionTracker(model, ["body"], task=task).track_epoch(source, 0, sample_limit=70)[
            "body"
        ]
    expected = by_hand(hidden(model, x[:70]), y[:70].numpy())
    for name, numbers in found.items():
        assert {key: numbers[key] for key in expected} == pytest.approx(expected, rel=1e-4), name


def test_gaps_in_a_subset_are_those_of_the_data_set() -> None:
    torch.manual_seed(0)
    model, (x, y) = Net(), examples()
    chosen = [80, 3, 3 + 4, 55, 21, 10, 64, 33, 2, 9, 17, 71, 5, 6, 8, 11, 12, 1, 0, 4]
    part = Subset(ls.IndexedDataset(TensorDataset(x, y)), chosen)
    found = FeatureEvolutionTracker(model, ["body"]).track_epoch(DataLoader(part, 6, shuffle=True), 0)["body"]
    expected = by_hand(hidden(model, x[chosen]), y[chosen].numpy())
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 90, 10**9, None])
def test_few_examples_and_more_than_there_are(limit: int | None) -> None:
    torch.manual_seed(0)
    model, (x, y) = Net(), examples()
    tracker = FeatureEvolutionTracker(model, ["body"])
    found = [tracker.track_epoch(TensorDataset(x, y), epoch, sample_limit=limit)["body"] for epoch in range(2)][1]
    n = min(limit or 90, 90)
    assert tracker.run.frame("FeatureEvolution", "dimensions")["value"].tolist() == [9, 9]
    assert (found["cka_previous"] is None) == (n < 4)
    assert (found["effective_rank"] is None) == (n < 2)
    assert (found["silhouette"] is None) == (n < 90)  # four classes in four examples: no two are of one
    assert all(tracker.reasons["body"][name] for name, value in found.items() if value is None)
    if n < 90:
        assert ("there is 1 class among 1 examples" in tracker.reasons["body"]["silhouette"]) == (n == 1)


def test_epochs_out_of_order_are_put_in_order_and_compared_in_the_order_of_tracking() -> None:
    torch.manual_seed(0)
    (x, y), states = examples(), [Net().state_dict() for _ in range(3)]
    tracker = FeatureEvolutionTracker(Net(), ["body"])
    rows: dict[int, Floats] = {}
    for epoch in (20, 0, 10):
        tracker.model.load_state_dict(states[epoch // 10])
        found = tracker.track_epoch([(x, y)], epoch)["body"]
        rows[epoch] = hidden(tracker.model, x)  # type: ignore[arg-type]
    assert found["cka_previous"] == pytest.approx(cka(rows[10], rows[0]), abs=1e-5)
    assert found["cka_first"] == pytest.approx(cka(rows[10], rows[20]), abs=1e-5)
    told = tracker.analyze_evolution()["body"]
    assert told["epochs"] == [0, 10, 20]
    assert told["metrics"]["cka_first"]["reasons"] == {20: "the first measurement"}
    with pytest.raises(ValueError, match="epoch 10 has been tracked already"):
        tracker.track_epoch([(x, y)], 10)
    with pytest.raises(ValueError, match=r"epoch=-1.*from 0"):
        tracker.track_epoch([(x, y)], -1)
    assert tracker.analyze_evolution()["body"] == told


@pytest.mark.parametrize("kind", ["bfloat16", "compiled"])
def test_half_precision_and_compiled_models(kind: str) -> None:
    torch.manual_seed(0)
    model, (x, y) = Net(), examples()
    plain = FeatureEvolutionTracker(copy.deepcopy(model), ["body"]).track_epoch([(x, y)], 0)["body"]
    if kind == "compiled":
        other: Any = torch.compile(model, backend="eager")
        assert FeatureEvolutionTracker(other, ["body"]).track_epoch([(x, y)], 0)["body"] == plain
    else:
        found = FeatureEvolutionTracker(model.bfloat16(), ["body"]).track_epoch([(x.bfloat16(), y)], 0)["body"]
        rounded = model.double().eval()  # the same rounded weights; only the passes round further
        expected = by_hand(rounded.body(x.bfloat16().double()).detach().numpy(), y.numpy())
        assert found["silhouette"] == pytest.approx(expected["silhouette"], abs=0.01)
        assert found["effective_rank"] == pytest.approx(expected["effective_rank"], rel=0.01)


SLASHED = ["a/b", "a_b", "a b", "ünï/é", "x" * 260, "слой" * 60, "con:1*?", "model"]


def test_names_of_layers_never_share_a_file_and_are_never_too_long(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in SLASHED:
                self.add_module(name, nn.Linear(5, 5))

        def forward(self, x: Tensor) -> Tensor:
            for module in self.children():
                x = module(x)
            return x

    torch.manual_seed(0)
    (x, y), tracker = examples(), FeatureEvolutionTracker(Named(), ["", *SLASHED])
    tracker.track_epoch([(x, y)], 0)
    paths = [path for name in tracker.layer_names for path in tracker.visualize_evolution(name, tmp_path)]
    drawn = ["", *SLASHED[:3], max(SLASHED, key=len)]  # the whole model, those that are easily the same, the longest
    paths += [path for name in drawn for path in tracker.plot_metrics_evolution(name, tmp_path)]
    assert len(set(paths)) == len(paths) == len(SLASHED) + 1 + len(drawn)
    assert all(path.parent == tmp_path and path.stat().st_size > 10_000 for path in paths)
    assert max(len(path.name.encode()) for path in paths) < 200
    for path in paths:  # no title runs over the edge
        with Image.open(path) as image:
            assert int(np.asarray(image.convert("L"))[:60, -4:].min()) == 255, path.name


@pytest.fixture
def tracked(tmp_path: Path) -> tuple[FeatureEvolutionTracker, Path]:
    torch.manual_seed(0)
    tracker = FeatureEvolutionTracker(Net(), ["body", "head"])
    for epoch in range(2):
        tracker.track_epoch([examples()], epoch)
        moved(tracker.model)
    path = tmp_path / "kept.pkl"
    tracker.save(path)
    return tracker, path


def test_saved_loaded_and_gone_on_with_is_as_if_it_had_never_stopped(
    tracked: tuple[FeatureEvolutionTracker, Path],
) -> None:
    whole, path = tracked
    again = FeatureEvolutionTracker.load(path, copy.deepcopy(whole.model))
    for epoch in (2, 3):
        assert whole.track_epoch([examples()], epoch) == again.track_epoch([examples()], epoch)
        for tracker in (whole, again):
            torch.manual_seed(epoch)
            moved(tracker.model)
    assert whole.analyze_evolution() == again.analyze_evolution()
    assert whole.reasons == again.reasons
    for epoch in range(4):
        one, two = (tracker.run.arrays("FeatureEvolution", epoch) for tracker in (whole, again))
        assert {name: array.tolist() for name, array in one.items()} == {n: a.tolist() for n, a in two.items()}
    with pytest.raises(ValueError, match="epoch 1 has been tracked already"):
        again.track_epoch([examples()], 1)


def test_a_damaged_file_is_refused_whole(tracked: tuple[FeatureEvolutionTracker, Path]) -> None:
    tracker, path = tracked
    good = path.read_bytes()
    for cut in (0, 7, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        with pytest.raises(ValueError, match=r"kept\.pkl is not an analyzer's file, or only a part of one"):
            FeatureEvolutionTracker.load(path, tracker.model)
    path.write_bytes(good.replace(b'\\"layer_names\\"', b'\\"layer_namez\\"'))
    with pytest.raises(ValueError, match="damaged: it does not say its layer_names"):
        FeatureEvolutionTracker.load(path, tracker.model)
    path.write_bytes(good)
    with pytest.raises(KeyError, match=r"no layer 'body'.*it has 0, 1"):
        FeatureEvolutionTracker.load(path, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    assert FeatureEvolutionTracker.load(path, tracker.model).analyze_evolution() == tracker.analyze_evolution()


class Levels(nn.Module):
    """Features whose classes are as far apart as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.apart, self.features, self.head = nn.Parameter(torch.zeros(1)), nn.Identity(), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x[:, :5] + self.apart * x[:, 5:]))


def followed(levels: list[float]) -> FeatureEvolutionTracker:
    torch.manual_seed(0)
    x, y = examples(120)
    inputs = torch.cat([x, torch.randn(4, 5)[y]], 1)
    model = Levels()
    tracker = FeatureEvolutionTracker(model, ["features"])
    for epoch, level in enumerate(levels):
        model.apart.data.fill_(level)
        tracker.track_epoch([(inputs, y)], epoch * 5)
    return tracker


def test_levels_that_do_not_change_and_one_that_jumps() -> None:
    flat = followed([1.0] * 12)
    assert flat.detect_phase_transitions("features") == []
    assert flat.phase_transitions("features").reason == "all values are equal"
    jump = followed([0.5] * 7 + [4.0] * 5)
    assert jump.detect_phase_transitions("features", metric="silhouette_score") == [35]
    assert jump.detect_phase_transitions("features", metric="class_separability") == [35]
    few = followed([0.5] * 2 + [4.0] * 2)
    assert few.detect_phase_transitions("features") == []
    assert "4 values: from 8 on" in (few.phase_transitions("features").reason or "")
    noisy = followed([1.0 + 0.05 * ((7 * k) % 5 - 2) for k in range(20)])
    assert noisy.detect_phase_transitions("features") == []
    with pytest.raises(ValueError, match="Did you mean 'silhouette_score'"):
        jump.detect_phase_transitions("features", metric="silhouette_scores")
    with pytest.raises(ValueError, match="alpha between 0 and 1"):
        jump.detect_phase_transitions("features", alpha=2)


@pytest.mark.parametrize("classes", [1, 40])
def test_figures_of_one_class_and_of_forty_at_one_epoch(classes: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, _ = examples(200)
    tracker = FeatureEvolutionTracker(Net(), ["body"])
    found = tracker.track_epoch([(x, torch.arange(200) % classes)], 0)["body"]
    assert (found["silhouette"] is None) == (classes == 1)
    assert (found["linear_probe_chance"] is None) == (classes == 1)
    for path in (*tracker.visualize_evolution("body", tmp_path), *tracker.plot_metrics_evolution("body", tmp_path)):
        assert path.stat().st_size > 10_000


def test_wrong_arguments_are_refused_in_words(tmp_path: Path) -> None:
    model, (x, y) = Net(), examples()
    with pytest.raises(TypeError, match=r"layer_names has 0: names as in model.named_modules\(\), such as '0'"):
        FeatureEvolutionTracker(model, [0])  # type: ignore[list-item]
    with pytest.raises(KeyError, match=r"no layer 'zzz'; close names: none; it has body, body\.0"):
        FeatureEvolutionTracker(model, ["zzz"])
    tracker = FeatureEvolutionTracker(model, ["body"])
    for limit in (0, -1, 2.5, "5", True):
        with pytest.raises((TypeError, ValueError), match=f"sample_limit={limit!r}: a whole number"):
            tracker.track_epoch([(x, y)], 0, sample_limit=limit)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data given to learnscope is empty"):
        tracker.track_epoch(TensorDataset(x[:0], y[:0]), 0)
    with pytest.raises(TypeError, match="an iterator would be used up"):
        tracker.track_epoch(iter([(x, y)]), 0)
    with pytest.raises(NotAvailable, match="no epoch has been tracked: call track_epoch"):
        tracker.plot_metrics_evolution("body", tmp_path)
    assert tracker.track_epoch([(x, y)], 0)["body"]["dimensions"] == 9  # nothing of it counts as an epoch


def test_a_model_that_fails_half_way_leaves_no_epoch_and_no_trace() -> None:
    torch.manual_seed(0)
    model, (x, y) = Net().train(), examples()
    tracker = FeatureEvolutionTracker(model, ["body"])
    tracker.track_epoch([(x, y)], 0)
    before = watched(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        tracker.track_epoch([(x[:40], y[:40]), (torch.zeros(50, 3), y[40:])], 1)
    assert watched(model) == before
    assert tracker.analyze_evolution()["body"]["epochs"] == [0]
    assert tracker.track_epoch([(x, y)], 1)["body"]["cka_previous"] == pytest.approx(1.0, abs=1e-6)
