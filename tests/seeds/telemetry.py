"""What the blocks of the telemetry document take for granted, and what they specify."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from seeds.room import Names, Room

SECTIONS = ("gradient_norm", "weight_delta", "learning_rates", "holdout_logits", "batch_stats")


class Siamese(nn.Module):
    """Two images through one backbone, and a head that says which wins."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh())
        self.head = nn.Linear(24, 2)

    def forward(self, img1: Tensor, img2: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([self.backbone(img1), self.backbone(img2)], 1))
        return out


def pairs(count: int, seed: int) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 2, 4, 4, generator=draw)
    brighter = images.mean((2, 3)).argmax(1)
    return [{"img1": both[0], "img2": both[1], "winner": winner} for both, winner in zip(images, brighter, strict=True)]


def pair_loader(count: int, seed: int) -> DataLoader[dict[str, Tensor]]:
    return DataLoader(pairs(count, seed), batch_size=8)  # type: ignore[arg-type]


def siamese_and_optimizer() -> tuple[Siamese, torch.optim.Optimizer]:
    """The differential learning rate of the document: ten times as much for the head."""
    torch.manual_seed(0)
    model = Siamese()
    groups = [{"params": model.backbone.parameters(), "lr": 1e-5}, {"params": model.head.parameters(), "lr": 1e-4}]
    return model, torch.optim.AdamW(groups)


def train(telemetry: TrainingTelemetry, batches: int = 4) -> list[dict[str, Any]]:
    """The lines of a short training."""
    model, optimizer = siamese_and_optimizer()
    telemetry.set_holdout_data(list(pair_loader(24, 1)))
    for number, batch in enumerate(pair_loader(8 * batches, 0), 1):
        F.cross_entropy(model(batch["img1"], batch["img2"]), batch["winner"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        telemetry.on_batch_end(model, optimizer, number, 0, "cpu", batch)
        optimizer.zero_grad()
    return [json.loads(line) for line in telemetry.metrics_file.read_text().splitlines()]


# ---- blocks that are executed


@contextmanager
def telemetry_set_up(room: Room) -> Iterator[Names]:
    """More than 50 batches of validation pairs, of which the block takes 51: 50 pairs are looked at, not 51 batches."""
    names: Names = {"output_dir": room.folder / "outputs", "val_loader": pair_loader(8 * 60, 1)}
    yield names
    telemetry = names["telemetry"]
    assert telemetry.output_dir == room.folder / "outputs" / "telemetry"
    assert telemetry.output_dir.is_dir()
    model, optimizer = siamese_and_optimizer()
    batch = next(iter(names["val_loader"]))
    F.cross_entropy(model(batch["img1"], batch["img2"]), batch["winner"]).backward()  # type: ignore[no-untyped-call]
    telemetry.on_batch_end(model, optimizer, 200, 0, "cpu", batch)
    (line,) = (json.loads(text) for text in telemetry.metrics_file.read_text().splitlines())
    assert len(line["holdout_logits"]["logits"]) == telemetry.config.holdout_size == 50
    assert line["holdout_logits"]["labels"] == [int(pair["winner"]) for pair in pairs(8 * 60, 1)[:50]]


@contextmanager
def training_with_telemetry(room: Room) -> Iterator[Names]:
    """`train_epoch` with telemetry every two batches writes every section, and trains as it does without."""

    def compute_loss(outputs: Tensor, winner: Tensor) -> Tensor:
        return F.cross_entropy(outputs, winner)

    names: Names = {"compute_loss": compute_loss}
    yield names
    weights = []
    for config in (TelemetryConfig(collect_every_n=2, output_dir=room.folder / "t"), None):
        model, optimizer = siamese_and_optimizer()
        telemetry = None if config is None else TrainingTelemetry(config)
        if telemetry is not None:
            telemetry.set_holdout_data(list(pair_loader(64, 1)))
        for epoch in range(2):
            names["train_epoch"](model, optimizer, pair_loader(32, 0), "cpu", telemetry, epoch)
        weights.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)
    lines = [json.loads(line) for line in (room.folder / "t" / "telemetry.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["batch_idx"], line["global_step"]) for line in lines] == [
        (0, 2, 2), (0, 4, 4), (1, 2, 6), (1, 4, 8),
    ]  # fmt: skip
    assert all(line[section] for line in lines for section in SECTIONS)


@contextmanager
def telemetry_to_plot(room: Room) -> Iterator[Names]:
    """A file as telemetry writes it, at the place from which the block reads it."""
    folder = room.folder / "outputs" / "run_xyz" / "telemetry"
    with TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=folder)) as telemetry:
        lines = train(telemetry)
    names: Names = {}
    yield names
    assert names["grad_norms"] == [line["gradient_norm"]["overall"] for line in lines]
    assert names["batch_indices"] == [1, 2, 3, 4]
    assert (room.folder / "grad_norm_plot.png").read_bytes().startswith(b"\x89PNG")


@contextmanager
def metric_of_a_subclass(room: Room) -> Iterator[Names]:
    """The method that the block shows is all that a subclass needs: its value is in every line."""
    names: Names = {"Dict": dict, "Any": Any}
    yield names
    added = {"_compute_my_metric": names["_compute_my_metric"]}
    extended = type("Extended", (TrainingTelemetry,), added)
    lines = train(extended(TelemetryConfig(collect_every_n=2, output_dir=room.folder)))
    assert [line["my_metric"] for line in lines] == [{"value": 42}] * 2


# ---- blocks that say what something is like


def the_two_classes(text: str, room: Room) -> None:
    """Fields, types and defaults of the configuration; names and parameters of all methods, helpers included."""
    config, telemetry = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    fields = [node for node in config.body if isinstance(node, ast.AnnAssign)]
    names = [node.target.id for node in fields if isinstance(node.target, ast.Name)]
    assert len(names) == len(fields) == 9
    known = {field.name: field for field in dataclasses.fields(TelemetryConfig)}
    assert list(known)[: len(names)] == names
    types = typing.get_type_hints(TelemetryConfig)
    for node, name in zip(fields, names, strict=True):
        assert node.value is not None
        expected = ast.literal_eval(node.value)
        assert (known[name].default, type(known[name].default)) == (expected, type(expected)), name
        assert types[name] == eval(ast.unparse(node.annotation), {"Optional": Optional, "Path": Path}), name
    for owner, built in ((config, TelemetryConfig), (telemetry, TrainingTelemetry)):
        methods = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
        assert len(methods) == (1 if built is TelemetryConfig else 8)
        for node in methods:
            documented = [argument.arg for argument in node.args.args]
            method = inspect.getattr_static(built, node.name)
            ours = list(inspect.signature(getattr(method, "__func__", method)).parameters)
            assert ours[: len(documented)] == documented, node.name
    given = [node.targets[0].attr for node in ast.walk(telemetry) if isinstance(node, ast.Assign)
             if isinstance(node.targets[0], ast.Attribute)]  # fmt: skip
    made = TrainingTelemetry(TelemetryConfig(enabled=False))
    assert given
    assert [name for name in given if not hasattr(made, name)] == []


def _section(name: str) -> Callable[[str, Room], None]:
    def compare(text: str, room: Room) -> None:
        """The keys that the document shows are there, with values of the same kind."""
        documented = json.loads(re.sub(r",\s*\.\.\.", "", text))
        lines = train(TrainingTelemetry(TelemetryConfig(collect_every_n=2, output_dir=room.folder)))
        assert len(lines) == 2
        for line in lines:
            assert documented.keys() <= line[name].keys()
            for key, value in documented.items():
                assert _kind(line[name][key]) == _kind(value), key

    return compare


def _kind(value: Any) -> Any:
    """What a value is, but for how long a list is and whether a number has a fraction."""
    if isinstance(value, list):
        return [_kind(value[0])]
    return "number" if isinstance(value, int | float) else type(value)


def a_line(text: str, room: Room) -> None:
    """The two lines that the document shows: their keys, and numbers for what they count."""
    shown = [re.findall(r'"(\w+)":', line) for line in text.strip().splitlines()]
    numbers = [re.findall(r'"(\w+)": (\d+)', line) for line in text.strip().splitlines()]
    lines = train(TrainingTelemetry(TelemetryConfig(collect_every_n=200, output_dir=room.folder)), batches=400)
    assert len(lines) == len(shown) == 2
    for line, keys, known in zip(lines, shown, numbers, strict=True):
        assert [key for key in line if key in keys] == keys
        assert {key: line[key] for key, _ in known} == {key: int(value) for key, value in known}


def the_default_configuration(text: str, room: Room) -> None:
    config = yaml.safe_load(text)
    assert TelemetryConfig.from_dict(config["telemetry"]) == TelemetryConfig()
    (room.folder / "config.yaml").write_text(text)
    assert TelemetryConfig.from_yaml(room.folder / "config.yaml") == TelemetryConfig()
    assert config["telemetry"].keys() == {field.name for field in dataclasses.fields(TelemetryConfig)} - {
        "groups", "tensorboard",
    }  # fmt: skip


def the_files(text: str, room: Room) -> None:
    """Those that the document lists below `telemetry/`."""
    listed = re.findall(r"── (\S+\.\w+)", text)
    with TrainingTelemetry(TelemetryConfig(collect_every_n=2, output_dir=room.folder / "telemetry")) as telemetry:
        train(telemetry)
    assert listed == ["telemetry.jsonl", "last_checkpoint.pt"]
    assert all((room.folder / "telemetry" / name).stat().st_size for name in listed)
    kept = torch.load(room.folder / "telemetry" / "last_checkpoint.pt", weights_only=True)
    assert kept["model"].keys() == dict(Siamese().named_parameters()).keys()


EXECUTED = (telemetry_set_up, training_with_telemetry, telemetry_to_plot, metric_of_a_subclass)
COMPARED: dict[str, Callable[[str, Room], None]] = {
    "the_two_classes": the_two_classes,
    "a_line": a_line,
    "the_default_configuration": the_default_configuration,
    "the_files": the_files,
    **{section: _section(section) for section in SECTIONS},
}
