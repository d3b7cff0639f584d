"""What the blocks of the documents take for granted, and what must be true once they have run.

A fixture is a context manager over the names a block is given. After the block has run in them, the fixture sees that
it did what the document says: a block that runs and measures nothing would be a failure.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from seeds import dynamics, posttrain, telemetry, tiny, trackers
from seeds.room import Fixture, Names, Room

THRESHOLDS = ("1e-08", "1e-06", "1e-04")
CHANGE = {f"param_change/{name}" for name in ("norm_l2", "norm_l1", "norm_max", "mean", "std")} | {
    f"param_change/{name}_at_{threshold}" for name in ("sparsity", "changed_ratio") for threshold in THRESHOLDS
}
SPARSE = {
    f"sparse/{name}_at_{threshold}{baseline}"
    for name in ("kl", "cosine", "mse", "top1_agree")
    for threshold in THRESHOLDS
    for baseline in ("", "_random")
} | {f"sparse/{name}_at_{threshold}" for name in ("kept_ratio", "unchanged_ratio") for threshold in THRESHOLDS}


def assert_documented(metrics: dict[str, float], keys: set[str], prefix: str = "") -> None:
    assert {prefix + key for key in keys} - metrics.keys() == set()
    assert [key for key in keys if not math.isfinite(metrics[prefix + key])] == []


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().ravel() for p in model.parameters()])


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> None:
    optimizer.zero_grad()
    model(**batch).loss.backward()
    optimizer.step()


def language_model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = tiny.language_model()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


# ---- document 000


@contextmanager
def loop_without_a_forward(room: Room) -> Iterator[Names]:
    """The block calls `loss.backward()` for a batch and never says where the loss comes from: here `backward` runs the
    model on the batch that the loader gave out last."""
    model, optimizer = language_model_and_optimizer()
    now: dict[str, Tensor] = {}
    seen: list[Tensor] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(weights(model)))

    def dataloader() -> Iterator[dict[str, Tensor]]:
        for batch in tiny.token_batches(201):
            now.update(batch)
            yield batch

    class Loss:
        def backward(self) -> None:
            optimizer.zero_grad()
            model(**now).loss.backward()

    with tiny.offline_wandb(room.folder / "wandb") as run:
        import wandb

        yield {
            "dataloader": dataloader(), "loss": Loss(), "optimizer": optimizer, "model": model, "wandb": wandb,
        }  # fmt: skip
        logged = dict(run.summary)
    assert logged["_step"] == 1, "measured after 100 and after 200 steps from the first"
    assert_documented(logged, CHANGE | SPARSE)
    assert logged["param_change/norm_l2"] == pytest.approx(float((seen[200] - seen[100]).norm()), rel=1e-5)


@contextmanager
def reinforcement_learning(room: Room) -> Iterator[Names]:
    """A real GRPOTrainer; `...` stands for its other arguments."""
    from trl import GRPOTrainer

    model = tiny.language_model()
    with tiny.offline_wandb(room.folder / "wandb") as run:
        yield {
            "GRPOTrainer": GRPOTrainer, "model": model, "reward": tiny.reward, "tokenizer": tiny.tokenizer(),
            "arguments": tiny.grpo_arguments(room.folder / "grpo", steps=101), "prompts": tiny.prompts(),
        }  # fmt: skip
        logged = dict(run.summary)
    assert logged["_step"] == 0, "measured once, 100 steps from the first"
    assert_documented(logged, CHANGE | SPARSE, prefix="analysis/")
    assert logged["analysis/param_change/norm_l2"] > 0


class LossOfTheBatch(nn.Module):
    """A model whose forward takes the batch and gives the loss, as the custom loop has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.last(torch.tanh(self.first(x))), y)


@contextmanager
def model_that_returns_its_loss(room: Room) -> Iterator[Names]:
    model = LossOfTheBatch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # the loop never zeroes the gradients
    dataloader = [(torch.randn(4, 5), torch.randint(3, (4,))) for _ in range(67)]
    names = {"model": model, "optimizer": optimizer, "dataloader": dataloader, "num_epochs": 3, "optimizer_step": 100}
    with pytest.warns(ls.ProbeWarning, match="SparseQuality") as said:  # a loss has no predictions to compare
        yield names
    assert sum(issubclass(warning.category, ls.ProbeWarning) for warning in said) == 1, "once"
    assert len(re.findall(r"^Step 100: \{", room.printed(), flags=re.MULTILINE)) == 2
    assert_documented(names["metrics"], CHANGE)


@contextmanager
def gradients_to_measure(room: Room) -> Iterator[Names]:
    names: Names = {}
    yield names
    model, optimizer = language_model_and_optimizer()
    metrics: list[dict[str, float]] = []
    for batch in tiny.token_batches(51):
        train_step(model, optimizer, batch)
        metrics.append(names["analyzer"].on_optimizer_step(model, inputs=batch))
    assert [bool(measured) for measured in metrics] == [False] * 50 + [True]
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))
    assert metrics[-1]["gradient/total_norm"] == pytest.approx(norm, rel=1e-5)


@contextmanager
def migrated_from_the_tracker(room: Room) -> Iterator[Names]:
    """The block takes the first step; the fixture the other hundred, still without passing inputs."""
    from learnscope.analysis import AnalysisConfig, ModelAnalysisManager

    model, optimizer = language_model_and_optimizer()
    names = {"AnalysisConfig": AnalysisConfig, "ModelAnalysisManager": ModelAnalysisManager, "model": model}
    yield names
    assert names["metrics"] == {}, "the first call takes the reference weights"
    before = weights(model)
    for batch in tiny.token_batches(100):
        train_step(model, optimizer, batch)
        metrics = names["analyzer"].on_optimizer_step(model)
    assert_documented(metrics, CHANGE)
    assert metrics["param_change/norm_l2"] == pytest.approx(float((weights(model) - before).norm()), rel=1e-5)


@contextmanager
def migrated_from_the_sparse_analyzer(room: Room) -> Iterator[Names]:
    from learnscope.analysis import AnalysisConfig, ModelAnalysisManager

    model, optimizer = language_model_and_optimizer()
    batch = tiny.token_batches(1)[0]
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    names = {"AnalysisConfig": AnalysisConfig, "ModelAnalysisManager": ModelAnalysisManager, "model": model, **inputs}
    yield names
    assert names["metrics"] == {}, "the first call takes the reference weights"
    for batch in tiny.token_batches(100):
        train_step(model, optimizer, batch)
        metrics = names["analyzer"].on_optimizer_step(model, inputs=inputs)
    assert_documented(metrics, CHANGE | SPARSE)
    assert metrics["sparse/kl_at_1e-04"] > metrics["sparse/kl_at_1e-08"] >= 0


@contextmanager
def manager_at_work(room: Room) -> Iterator[Names]:
    """An analyzer in the middle of a run: the metric that the block adds is there at the next measurement."""
    from learnscope.analysis import AnalysisConfig, MetricComputer, ModelAnalysisManager

    model, optimizer = language_model_and_optimizer()
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1))
    batches = tiny.token_batches(3)
    for batch in batches[:2]:
        train_step(model, optimizer, batch)
        metrics = analyzer.on_optimizer_step(model, inputs=batch)
    assert "my_metric/value" not in metrics
    before = weights(model)
    yield {"MetricComputer": MetricComputer, "analyzer": analyzer}
    train_step(model, optimizer, batches[2])
    metrics = analyzer.on_optimizer_step(model, inputs=batches[2])
    assert_documented(metrics, CHANGE | SPARSE)
    assert metrics["my_metric/value"] == pytest.approx(float((weights(model) - before).abs().max()), rel=1e-5)


def the_source_tree(text: str, _room: Room) -> None:
    """Every file of the tree is a module here, at the same place, with the names that the tree gives it."""
    folder, found = "", dict[str, str]()
    for line in text.splitlines()[1:]:
        name, _, comment = re.sub(r"^[│├└─\s]+", "", line).partition("#")
        if name.strip().endswith("/"):
            folder = name.strip()
        elif name.strip().endswith(".py"):
            inner = line.startswith((" ", "│"))
            found[(folder if inner else "") + name.strip()] = comment.strip()
    assert len(found) == 8
    for path, named in found.items():
        dotted = path.removesuffix("__init__.py").removesuffix(".py").strip("/").replace("/", ".")
        module = importlib.import_module(".".join(filter(None, ("learnscope.analysis", dotted))))
        for name in re.findall(r"[A-Z]\w+[a-z]\w*", named.replace("Public API exports", "")):
            assert hasattr(module, name), f"{path} has no {name}"


COMPARED = {the_source_tree.__name__: the_source_tree}
FIXTURES: dict[str, Fixture] = {
    fixture.__name__: fixture
    for fixture in (
        loop_without_a_forward,
        reinforcement_learning,
        model_that_returns_its_loss,
        gradients_to_measure,
        migrated_from_the_tracker,
        migrated_from_the_sparse_analyzer,
        manager_at_work,
        *telemetry.EXECUTED,
        *dynamics.EXECUTED,
        *trackers.EXECUTED,
        *posttrain.EXECUTED,
    )
}
