"""What the blocks of the post-training document take for granted, and what they specify.

It names a saved GPT-2 and a loader: both are made here, as small as they get.
"""

from __future__ import annotations

import functools
import json
import math
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from forked import run_program
from learnscope.cli.audit import main
from learnscope.posttrain import ModelAnalyzer
from learnscope.report.audit.folder import SECTIONS
from seeds.room import Names, Room
from unpainted import unpainted_plots

ROOT = Path(__file__).parents[2]
METRICS = ("loss", "perplexity", "accuracy")
LATENCIES = ("mean_latency", "p50_latency", "p95_latency", "p99_latency")


@functools.cache
def saved_model() -> Path:
    """A folder with `model.pt`, a state dictionary, its `config.json`, and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = Path(tempfile.mkdtemp(prefix="saved-model-"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE({token: place for place, token in enumerate(["<eos>", *alphabet])}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=257, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        architectures=["GPT2LMHeadModel"],
    )  # fmt: skip
    torch.save(GPT2LMHeadModel(config).state_dict(), folder / "model.pt")
    config.save_pretrained(folder)
    return folder


def put(folder: Path, name: str = "model.pt") -> None:
    """The saved model in the folder of a block, under the name that it has there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in saved_model().iterdir():
        shutil.copy(path, folder / (name if path.name == "model.pt" else path.name))


def loader() -> DataLoader[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 257, (8, 12), generator=generator)
    rows = [{"input_ids": row, "labels": row} for row in ids]
    return DataLoader(rows, batch_size=4)


def analyzer() -> ModelAnalyzer:
    return ModelAnalyzer(saved_model() / "model.pt", progress=False)


def files_of(block: str) -> list[str]:
    """The files of a tree, with their folders below the first."""
    folder, found = "", []
    for line in block.splitlines()[1:]:
        name = re.sub(r"^[│├└─\s]+", "", line).split("#")[0].strip()
        if name.endswith("/"):
            folder = name
        elif name:
            found.append(folder + name)
    return found


TREE = [
    "analysis_results.json", "summary_report.md", "insights.md", "plots/performance_speed.png",
    "plots/performance_memory.png", "plots/bit_width_configurations.png", "plots/accuracy_vs_bits.png",
    "plots/layer_sensitivity.png", "plots/adversarial_robustness.png", "plots/noise_robustness.png",
    "plots/perturbation_robustness.png", "plots/analysis_summary_dashboard.png",
]  # fmt: skip


def assert_report(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The whole report is there, but for the parts that were not run, which it names."""
    body: dict[str, Any] = json.loads((folder / "analysis_results.json").read_text())
    # questions are asked only where a file of them is given
    assert set(body["not_run"]) == {"tasks"} | {part for section in without for part in SECTIONS[section]}
    missing = [name for name in TREE if not (folder / name).is_file()]
    if not without:
        assert missing == []
    for name in set(TREE) - set(missing):
        assert (folder / name).stat().st_size > 100, name
    for part in ("performance", "bit_widths", "robustness"):
        assert bool(body[part]) == (part not in without), part
    return body


# ---- commands


def the_basic_command(block: str, room: Room) -> None:
    """As a user would run it: `python analyze_model.py` of the repository, in another folder."""
    [first, second] = block.strip().splitlines()
    assert first == "cd part3_post_training"
    words = shlex.split(second)
    assert words[:2] == ["python", "analyze_model.py"]
    put(room.folder / "path" / "to")
    fewer = ("--examples", "6", "--length", "24")
    result = run_program(ROOT / words[1], *words[2:], *fewer, folder=room.folder, audits=True)
    assert result.returncode == 0, result.stderr
    body = assert_report(room.folder / "results")
    assert body["performance"]


def the_documented_options(block: str, room: Room) -> None:
    words = shlex.split(block.replace("\\\n", " "))
    assert words[:2] == ["python", "analyze_model.py"]
    put(room.folder / "config", "switchable_model.pt")
    (room.folder / "config" / "config.json").rename(room.folder / "config.json")
    (room.folder / "config" / "switchable_model.pt").rename(room.folder / "switchable_model.pt")
    for path in (room.folder / "config").iterdir():
        path.rename(room.folder / path.name)
    here = Path.cwd()
    import os

    os.chdir(room.folder)
    try:
        assert main([*words[2:], "--length", "24", "--parts", "performance"]) == 0
    finally:
        os.chdir(here)
    body = assert_report(room.folder / "analysis_results", without=("bit_widths", "robustness"))
    assert body["about"]["data"]["split"] == "validation[:100]"
    assert 0 < body["about"]["data"]["documents"] <= 100


# ---- the report's files


def the_report_tree(block: str, _room: Room) -> None:
    assert files_of(block) == TREE


# ---- code


@contextmanager
def a_saved_model_and_a_loader(room: Room) -> Iterator[Names]:
    put(room.folder)
    names: Names = {"data_loader": loader()}
    yield names
    performance = names["performance_results"]
    assert all(math.isfinite(performance["basic_metrics"][name]) for name in METRICS)
    assert performance["speed"]["tokens_per_second"] > 0
    assert names["bit_width_results"]["configurations"]["uniform_4"]["kl"] > 0
    assert 0 <= names["robustness_results"]["robustness_gap"] <= 1
    assert_report(room.folder / "results")


@contextmanager
def speed_of_an_analyzer(room: Room) -> Iterator[Names]:
    names: Names = {"analyzer": analyzer(), "data_loader": loader()}
    yield names
    metrics = names["speed_metrics"]
    printed = re.fullmatch(r"Throughput: ([\d.]+) tokens/sec\n", room.printed())
    assert printed
    assert float(printed[1]) == round(metrics["tokens_per_second"], 2) > 0
    assert metrics["n"] >= 1
    for name, least in zip(LATENCIES, (1, 1, 59, 299), strict=True):
        assert math.isfinite(metrics[name]) == (metrics["n"] >= least), name


@contextmanager
def sensitivity_of_an_analyzer(_room: Room) -> Iterator[Names]:
    names: Names = {"analyzer": analyzer(), "data_loader": loader()}
    yield names
    found = names["sensitivity"]
    layers = found["layers"]
    assert len(layers) == 2
    for by_bits in layers.values():
        assert all(kl >= 0 and math.isfinite(kl) for kl in by_bits.values())


@contextmanager
def custom_configurations(_room: Room) -> Iterator[Names]:
    names: Names = {"analyzer": analyzer(), "data_loader": loader()}
    yield names
    found = names["results"]["my_config"]
    assert found["kl"] > 0
    assert 6 < found["effective_bits"] < 9, "8 and 4 bits in turn, and the scales of small channels"


@contextmanager
def only_two_of_three(room: Room) -> Iterator[Names]:
    names: Names = {"analyzer": analyzer(), "data_loader": loader()}
    with unpainted_plots():  # they are painted for the whole report
        yield names
    assert names["performance_only"]["basic_metrics"]["loss"] > 0
    assert_report(room.folder / "results", without=("robustness",))
    assert "robustness" in (room.folder / "results" / "summary_report.md").read_text().lower()


@contextmanager
def three_models(room: Room) -> Iterator[Names]:
    for name in ("model1.pt", "model2.pt", "model3.pt"):
        put(room.folder, name)
    with unpainted_plots():
        yield {"ModelAnalyzer": ModelAnalyzer, "data_loader": loader()}
    for name in ("model1.pt", "model2.pt", "model3.pt"):
        body = assert_report(room.folder / "results" / name, without=("bit_widths", "robustness"))
        assert body["name"] == name


EXECUTED = (
    a_saved_model_and_a_loader, speed_of_an_analyzer, sensitivity_of_an_analyzer, custom_configurations,
    only_two_of_three, three_models,
)  # fmt: skip
COMPARED: dict[str, Callable[[str, Room], None]] = {
    compared.__name__: compared for compared in (the_basic_command, the_documented_options, the_report_tree)
}
