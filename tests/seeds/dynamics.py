"""What the blocks of the learning-dynamics document take for granted, and what must be true once they have run."""

from __future__ import annotations

import copy
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from learnscope.dynamics import (
    FeatureEvolutionTracker,
    GradientFlowAnalyzer,
    LearningDynamicsAnalyzer,
    MemorizationDetector,
    PhaseTransitionAttributor,
)
from seeds.room import Names, Room

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH, DEVICE = 64, "cpu"
EPOCHS = (0, 10, 20, 30, 40, 50)


class YourModel(nn.Module):
    """A classifier of digits, with the layers that the document names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
        self.layer2 = nn.Sequential(nn.Linear(216, 32), nn.ReLU(), nn.Dropout(0.1))
        self.layer3 = nn.Sequential(nn.Linear(32, 24), nn.ReLU())
        self.layer4 = nn.Sequential(nn.Linear(24, 16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer4(self.layer3(self.layer2(self.layer1(x)))))
        return out


def digits(start: int, stop: int) -> TensorDataset:
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32)[start:stop, None] / 16
    return TensorDataset(images, torch.tensor(bunch.target)[start:stop])


def in_order(data: TensorDataset) -> DataLoader[Any]:
    return DataLoader(data, batch_size=BATCH)


def made(shuffle: bool = False) -> Names:
    """A model about to be trained, with everything that a loop needs."""
    torch.manual_seed(0)
    model = YourModel()
    train, test = digits(0, 300), digits(300, 420)
    loader: DataLoader[Any] = DataLoader(train, batch_size=BATCH, shuffle=shuffle)
    return {
        "torch": torch, "model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "criterion": nn.CrossEntropyLoss(), "train_dataset": train, "train_loader": loader,
        "test_dataset": test, "test_loader": in_order(test), "batch_size": BATCH, "device": DEVICE, "num_epochs": 6,
    }  # fmt: skip


def trained(epochs: int, names: Names) -> Iterator[nn.Module]:
    """The model after each epoch, the first one before any training."""
    for _ in range(epochs):
        yield names["model"]
        for x, y in names["train_loader"]:
            names["optimizer"].zero_grad()
            names["criterion"](names["model"](x), y).backward()
            names["optimizer"].step()


def checkpoints() -> tuple[Names, dict[int, nn.Module]]:
    """Six checkpoints of one training, an epoch apart, by the numbers that the document gives them."""
    names = made()
    return names, {
        epoch: copy.deepcopy(model).eval() for epoch, model in zip(EPOCHS, trained(len(EPOCHS), names), strict=True)
    }


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    x, y = data.tensors
    return float((copy.deepcopy(model).eval()(x).argmax(1) == y).double().mean())


def figures(folder: Path) -> set[str]:
    found = {path.name for path in folder.glob("*.png") if path.stat().st_size > 5_000}
    assert found, f"there are no figures in {folder.name}"
    return found


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def assert_follows_all(analyzer: LearningDynamicsAnalyzer, names: Names) -> None:
    frame = analyzer.frame()
    assert frame["id"].tolist() == list(range(len(names["train_dataset"])))
    assert frame["target"].tolist() == names["train_dataset"].tensors[1].tolist()
    assert frame["presentations"].eq(names["num_epochs"]).all()
    assert [told["epoch"] for told in analyzer.epoch_statistics] == list(range(names["num_epochs"]))


def assert_follows_none(analyzer: LearningDynamicsAnalyzer, names: Names) -> None:
    """The printed positions do not name examples of a loader that shuffles: null, with the reason."""
    first, *later = analyzer.epoch_statistics
    assert [told["epoch"] for told in (first, *later)] == list(range(names["num_epochs"]))
    assert first["examples"] == 300
    assert {told["examples"] for told in later} == {None}
    assert all(0 <= told["accuracy"] <= 1 for told in (first, *later))
    assert "IndexedDataset" in str(analyzer.refused)
    assert len(analyzer.frame()) == 0


# ---- while it trains


@contextmanager
def minimal_example(room: Room) -> Iterator[Names]:
    """With a loader that shuffles, as training loaders do: one warning says that positions are not examples."""
    names = made(shuffle=True)
    with pytest.warns(ls.ProbeWarning, match="position in a shuffled loader") as said:
        yield names
    assert sum(issubclass(warning.category, ls.ProbeWarning) for warning in said) == 1, "once"
    assert_follows_none(names["analyzer"], names)
    assert room.printed() == "Hard examples: 0\n"
    assert "not known" in repr(names["analysis"]["hard_examples"])
    assert figures(room.folder / "results") == {"learning_curves.png"}


@contextmanager
def minimal_example_in_order(room: Room) -> Iterator[Names]:
    """The block does not train: the model stays as it is, and so do its answers."""
    names = made()
    yield names
    analyzer = names["analyzer"]
    assert_follows_all(analyzer, names)
    assert [told["accuracy"] for told in analyzer.epoch_statistics] == pytest.approx(
        [accuracy(names["model"], names["train_dataset"])] * names["num_epochs"]
    )
    analysis = names["analysis"]
    assert room.printed() == f"Hard examples: {len(analysis['hard_examples'])}\n"
    kinds = ("hard_examples", "easy_examples", "medium_examples")
    assert sorted(i for kind in kinds for i in analysis[kind]) == list(range(300))
    assert {"learning_curves.png", "data_map.png", "hardest_examples.png"} <= figures(room.folder / "results")
    assert all(module.training for module in names["model"].modules())


@contextmanager
def three_analyzers(room: Room) -> Iterator[Names]:
    names = made(shuffle=True)
    with pytest.warns(ls.ProbeWarning, match="position in a shuffled loader"):
        yield names
    assert_follows_none(names["dynamics"], names)
    _assert_trained_under_three(names, room, drawn=3)


@contextmanager
def three_analyzers_in_order(room: Room) -> Iterator[Names]:
    names = made()
    yield names
    assert_follows_all(names["dynamics"], names)
    _assert_trained_under_three(names, room, drawn=5)


def _assert_trained_under_three(names: Names, room: Room, drawn: int) -> None:
    assert names["dynamics"].epoch_statistics[-1]["accuracy"] > 0.7
    printed = re.findall(r"^Epoch (\d+): Memorization=(-?\d\.\d{4})$", room.printed(), flags=re.MULTILINE)
    assert [epoch for epoch, _ in printed] == ["0", "5"]
    gap = accuracy(names["model"], names["train_dataset"]) - accuracy(names["model"], names["test_dataset"])
    assert float(printed[-1][1]) == pytest.approx(gap, abs=5e-5)
    looks = list(names["gradients"].run.records("GradientFlow"))
    assert [record.epoch for record in looks] == list(range(6)), "the first batch of each epoch"
    assert names["gradients"].analyze_gradient_flow()["exploding_layers"] == []
    assert len(figures(room.folder / "analysis")) >= drawn


@contextmanager
def integrated(room: Room) -> Iterator[Names]:
    names = made(shuffle=True)
    random = torch.get_rng_state()
    with pytest.warns(ls.ProbeWarning, match="position in a shuffled loader"):
        yield names
    assert_follows_none(names["analyzer"], names)
    _assert_untouched(names, random, made(shuffle=True))


@contextmanager
def integrated_in_order(room: Room) -> Iterator[Names]:
    names = made()
    random = torch.get_rng_state()
    yield names
    assert_follows_all(names["analyzer"], names)
    figures(room.folder / "results")
    _assert_untouched(names, random, made())


def _assert_untouched(names: Names, random: Tensor, plain: Names) -> None:
    """Weights are those of the same training without the lines that were added."""
    torch.set_rng_state(random)
    for _ in trained(2 * plain["num_epochs"], plain):  # the half before, and the half after
        pass
    own, other = names["model"].state_dict(), plain["model"].state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)


@contextmanager
def some_examples(room: Room) -> Iterator[Names]:
    names = made()
    names["train_dataset"] = digits(0, 1500)
    names["train_loader"] = in_order(names["train_dataset"])
    tracker = FeatureEvolutionTracker(names["model"], ["layer4"])
    names |= {
        "LearningDynamicsAnalyzer": LearningDynamicsAnalyzer, "feature_tracker": tracker, "epoch": 3,
    }  # fmt: skip
    yield names
    names["analyzer"].compute_epoch_statistics(names["train_loader"], names["model"], 0)
    assert names["analyzer"].frame()["id"].tolist() == list(range(1000))
    (record,) = tracker.run.records()
    assert (record.epoch, record.notes["examples"]) == (3, 500)


@contextmanager
def now_and_then(room: Room) -> Iterator[Names]:
    """`# ... training ...` is a comment: the model stays as it is."""
    names = made() | {"num_epochs": 11}
    names |= {
        "dynamics": LearningDynamicsAnalyzer(num_classes=10), "memorization": MemorizationDetector(num_classes=10),
        "feature_tracker": FeatureEvolutionTracker(names["model"], ["layer3"]),
    }  # fmt: skip
    yield names
    assert_follows_all(names["dynamics"], names)
    assert names["memorization"].analyze_memorization_evolution()["epochs"] == [0, 5, 10]
    assert [record.epoch for record in names["feature_tracker"].run.records()] == [0, 10]


@contextmanager
def saved_and_loaded(room: Room) -> Iterator[Names]:
    names = made()
    analyzer = LearningDynamicsAnalyzer(num_classes=10)
    analyzer.compute_epoch_statistics(names["train_loader"], names["model"], 49)
    names = {"analyzer": analyzer, "epoch": 50, "LearningDynamicsAnalyzer": LearningDynamicsAnalyzer}
    yield names
    assert names["analyzer"] is not analyzer
    assert names["analyzer"].analyze_learning_patterns() == analyzer.analyze_learning_patterns()
    start = (room.folder / "checkpoints" / "analyzer_epoch_50.pkl").read_bytes()[:64]
    assert not start.startswith(b"\x80")
    assert b"__metadata__" in start, "safetensors"


@contextmanager
def less_of_it(room: Room) -> Iterator[Names]:
    names = made()
    x, y = next(iter(names["train_loader"]))
    loss = names["criterion"](names["model"](x), y)
    loss.backward()
    standing = [p.grad.clone() for p in names["model"].parameters()]
    gradients = GradientFlowAnalyzer(names["model"])
    names |= {
        "LearningDynamicsAnalyzer": LearningDynamicsAnalyzer, "gradients": gradients, "loss": loss, "epoch": 0,
        "batch_idx": 20,
    }  # fmt: skip
    yield names
    (record,) = gradients.run.records("GradientFlow")
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in standing))
    found = next(row.value for row in record.rows() if (row.name, row.kind) == ("norm", "model"))
    assert found == pytest.approx(norm, rel=1e-6)
    assert all(torch.equal(p.grad, g) for p, g in zip(names["model"].parameters(), standing, strict=True))
    names["analyzer"].track_batch(names["model"], x, y, torch.arange(len(y)), 0)
    assert len(names["analyzer"].frame()) == 64, "the targets tell the classes"


@contextmanager
def in_eval_mode(room: Room) -> Iterator[Names]:
    names = made()
    x, y = next(iter(names["train_loader"]))
    analyzer = LearningDynamicsAnalyzer()
    names |= {"analyzer": analyzer, "inputs": x, "targets": y, "ids": torch.arange(64), "epoch": 0}
    yield names
    assert analyzer.frame()["presentations"].tolist() == [1] * 64
    assert all(module.training for module in names["model"].modules())


# ---- afterwards


@contextmanager
def memorization_of_checkpoints(room: Room) -> Iterator[Names]:
    names, models = checkpoints()
    (room.folder / "checkpoints").mkdir()
    for epoch, model in models.items():
        torch.save(model.state_dict(), room.folder / "checkpoints" / f"model_epoch_{epoch}.pth")
    names["YourModel"] = YourModel
    yield names
    printed = room.printed()
    lines = re.findall(r"^Epoch (\d+): Train=(\d\.\d{4}), Test=(\d\.\d{4})$", printed, flags=re.MULTILINE)
    assert [int(epoch) for epoch, _, _ in lines] == list(EPOCHS)
    for epoch, train, test in lines:
        for said, data in ((train, names["train_dataset"]), (test, names["test_dataset"])):
            assert float(said) == pytest.approx(accuracy(models[int(epoch)], data), abs=5e-5)
    assert f"Transition at epoch: {names['mem_analysis']['transition_epoch']}\n" in printed
    gaps = [accuracy(m, names["train_dataset"]) - accuracy(m, names["test_dataset"]) for m in models.values()]
    assert names["mem_analysis"]["peak_gap"] == pytest.approx(max(gaps))
    figures(room.folder / "analysis")


@contextmanager
def features_of_checkpoints(room: Room) -> Iterator[Names]:
    names, models = checkpoints()
    names |= {"YourModel": YourModel, "checkpoints": models, "FeatureEvolutionTracker": FeatureEvolutionTracker}
    yield names
    tracker = names["feature_tracker"]
    assert set(names["analysis"]) >= {"layer3", "layer4"}
    assert [record.epoch for record in tracker.run.records()] == list(EPOCHS)
    assert f"Phase transitions at epochs: {names['transitions']}\n" == room.printed()
    assert set(names["transitions"]) <= set(EPOCHS)
    assert len(figures(room.folder / "analysis")) == 2
    assert hooks(tracker.model) == 0


@contextmanager
def examples_of_a_transition(room: Room) -> Iterator[Names]:
    names, models = checkpoints()
    names |= {"checkpoints": models, "PhaseTransitionAttributor": PhaseTransitionAttributor}
    yield names
    critical = names["critical"]
    assert len(critical) == 100
    labels = names["train_dataset"].tensors[1]
    counted = names["analysis"]["label_distribution"]
    assert sum(counted.values()) == 100
    printed = room.printed()
    assert "Critical examples: 100\n" in printed
    assert f"Label distribution: {counted}\n" in printed
    assert {int(label) for label in counted} <= set(labels.tolist())


@contextmanager
def three_phenomena(room: Room) -> Iterator[Names]:
    """Analyzers that were saved while three models trained."""
    analyses, names = {}, {}
    for seed, name in enumerate(("grokking", "bias", "normal")):
        kit = made()
        analyzer = LearningDynamicsAnalyzer(num_classes=10)
        for epoch, model in enumerate(trained(2 + seed, kit)):
            analyzer.compute_epoch_statistics(kit["train_loader"], model, epoch)
        analyzer.save(room.folder / "saved" / f"{name}_analyzer.pkl")
        analyses[name] = analyzer.analyze_learning_patterns()
        maker = {"bias": "train_biased_model"}.get(name, f"train_{name}_model")
        names[maker] = lambda kit=kit: (kit["model"], kit["train_loader"], kit["test_loader"])
    yield names
    assert names["analyses"] == analyses
    printed = room.printed()
    for name, analysis in analyses.items():
        forgotten = analysis["forgetting_statistics"]["examples_with_forgetting"]
        said = f"\n{name}:\n  Hard examples: {len(analysis['hard_examples'])}\n  Forgetting events: {forgotten}\n"
        assert said in printed
    assert len({len(analysis["hard_examples"]) for analysis in analyses.values()}) > 1


# ---- hooks and paths


@contextmanager
def cleaned_up(room: Room) -> Iterator[Names]:
    names = made() | {"FeatureEvolutionTracker": FeatureEvolutionTracker}
    yield names
    assert hooks(names["model"]) == 0


@contextmanager
def one_tracker_after_the_other(room: Room) -> Iterator[Names]:
    names = made()
    first = FeatureEvolutionTracker(names["model"], ["layer3"])
    before = first.track_epoch(names["train_loader"], 0)
    names |= {"tracker1": first, "FeatureEvolutionTracker": FeatureEvolutionTracker}
    yield names
    second = names["tracker"]
    assert second is not first
    found = second.track_epoch(names["train_loader"], 0)
    assert set(found) == {"layer3"}
    assert found == before, "two on one model do not interfere"
    assert hooks(names["model"]) == 0


@contextmanager
def script_of_a_repository(room: Room) -> Iterator[Names]:
    before = list(sys.path)
    names: Names = {"__file__": str(room.folder / "examples" / "script.py")}
    try:
        yield names
        assert sys.path[0] == str(room.folder)
        assert names["LearningDynamicsAnalyzer"] is LearningDynamicsAnalyzer
    finally:
        sys.path[:] = before


def the_command_of_an_example(block: str, _room: Room) -> None:
    """The file is there; tests/test_examples.py runs every file of that folder."""
    command, script = block.split()
    assert command == "python"
    assert EXAMPLES.parent / script in EXAMPLES.glob("*.py")


EXECUTED = (
    minimal_example, minimal_example_in_order, three_analyzers, three_analyzers_in_order, integrated,
    integrated_in_order, some_examples, now_and_then, saved_and_loaded, less_of_it,
    in_eval_mode, memorization_of_checkpoints, features_of_checkpoints, examples_of_a_transition, three_phenomena,
    cleaned_up, one_tracker_after_the_other, script_of_a_repository,
)  # fmt: skip
COMPARED: dict[str, Callable[[str, Room], None]] = {"the_command_of_an_example": the_command_of_an_example}
