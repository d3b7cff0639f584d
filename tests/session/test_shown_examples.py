"""Training examples in the report: fetched when the run closes, without touching the training."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import learnscope as ls
from learnscope.findings.examples.notable import LISTED, notable
from learnscope.ledger.looks import Look
from learnscope.ledger.shown import NAME, shown_of
from learnscope.report.page.packing import Columns, unpack
from learnscope.report.page.training import run_payload
from learnscope.run import Run
from report.page.reading import numbers

IMAGES, LABELS = load_digits(return_X_y=True)
DIGITS, TARGETS = torch.tensor(IMAGES).float() / 16, torch.tensor(LABELS)


def train(
    data: Any, epochs: int = 3, before_close: Callable[[ls.Watch], Any] = ls.Watch.save_state, **watching: Any
) -> ls.Watch:
    """Train on digits with ids, with whatever is shown; 600 of them, of which 30 have a wrong label."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    targets = TARGETS[:600].clone()
    targets[:30] = (targets[:30] + 1) % 10
    items = ls.IndexedDataset(TensorDataset(DIGITS[:600], targets))
    ledger = ls.ExampleLedger(show=data)
    with ls.watch(model, optimizer, probes=[ledger], **watching) as w:
        for _ in range(epochs):
            for x, y, ids in DataLoader(items, batch_size=100, shuffle=True):
                logits = model(x)
                loss = nn.functional.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.examples(ids, logits, y)
            w.end_epoch()
        before_close(w)
    return w


def listed(run: Run) -> list[int]:
    return list(notable(run.examples()).targets())


def looks_of(run: Run) -> dict[int, Look]:
    looks, problems = shown_of(run.backend)
    assert problems == []
    return looks


def payload(run: Run) -> dict[str, Any]:
    columns = Columns()
    body = run_payload(columns, run, [], name="x")
    again, floats, integers = unpack(columns.pack(body))
    return again | {"columns": {"f": floats, "i": integers}}


def test_digits_are_on_the_page_as_they_are_in_the_data(tmp_path: Path) -> None:
    train(ls.ShowExamples(TensorDataset(DIGITS, TARGETS), shape=(8, 8)), run=tmp_path / "r")
    run = ls.open_run(tmp_path / "r")
    assert run.problems == []
    body = payload(run)
    examples = body["examples"]
    assert examples["hardest"]
    assert len(examples["looks"]) == len(listed(run)) <= 3 * LISTED
    for name in ("hardest", "forgotten", "doubted"):
        for row, place in zip(examples[name], examples["look_of"][name], strict=True):
            look = examples["looks"][place]
            grey = np.array([[round(255 * v / 16) for v in line] for line in IMAGES[row["id"]].reshape(8, 8)])
            expected = grey * 65536 + grey * 256 + grey
            pixels = numbers(body, look["pixels"]).reshape(look["height"], look["width"])
            np.testing.assert_array_equal(pixels, expected)
            changed = row["id"] < 30  # the loop trained with another label than the data set has
            assert ("in the training" in look.get("note", "")) == changed
    assert any(row["id"] < 30 for row in examples["hardest"])


def test_larger_images_are_made_smaller(tmp_path: Path) -> None:
    large = np.kron(IMAGES[:600].reshape(-1, 8, 8), np.ones((12, 12)))  # 96 × 96 with blocks of one value
    run = train(large / 16).run
    looks = looks_of(run)
    assert list(looks) == listed(run)
    for id, look in looks.items():
        grey = np.kron(np.round(255 * IMAGES[id].reshape(8, 8) / 16), np.ones((6, 6)))
        assert look.image is not None
        np.testing.assert_array_equal(look.image, np.repeat(grey[..., None], 3, -1).astype(np.uint8))


def test_texts_are_in_both_reports(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)> | `a|b` **bold** \x1b[31m \u202e"
    train(lambda id: {"text": f"text of {id} {hostile}", "label": 0}, run=tmp_path / "r")
    run = ls.open_run(tmp_path / "r")
    first = listed(run)[0]
    assert payload(run)["examples"]["looks"][0]["text"].startswith(f"text of {first} <img")
    page = run.page().read_text()
    assert "<img" not in page
    report = run.report().read_text()
    lines = [line for line in report.splitlines() if f"text of {first} " in line]
    assert lines
    assert "\\<img src=x onerror=alert(1)\\> \\| 'a\\|b' \\*\\*bold\\*\\* \\\\u001b\\[31m" in lines[0]
    assert "\u202e" not in report
    assert "\x1b" not in report


class Augmenting(Dataset[Any]):
    """Draws from all generators that a data set may draw from."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(8, 8) + random.random() + float(np.random.rand())
        return noise, int(TARGETS[index])


def generators() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()  # type: ignore[index, union-attr]


def test_an_augmenting_data_set_leaves_the_generators_alone(tmp_path: Path) -> None:
    at: list[Any] = []
    data = Augmenting()
    w = train(data, before_close=lambda _: at.append(generators()), run=tmp_path / "r")
    assert generators() == at[0]
    assert all(look.image is not None for look in looks_of(w.run).values())
    ls.open_run(tmp_path / "r").show_examples(data)
    assert generators() == at[0]


def test_a_data_set_that_raises_hurts_nothing(tmp_path: Path) -> None:
    def broken(id: int) -> Any:
        if id % 2:
            raise OSError(f"no file for {id} \x1b[2J")
        return "text"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(broken, run=tmp_path / "r", strict=True)
    run = ls.open_run(tmp_path / "r")
    assert run.status == "finished"
    looks = looks_of(run)
    assert {id % 2 for id in looks} == {0, 1}
    for id, look in looks.items():
        assert (look.text, look.reason) == (
            (None, f"OSError: no file for {id} \\u001b[2J") if id % 2 else ("text", "")
        )  # fmt: skip


def test_afterwards_in_a_folder_and_in_memory(tmp_path: Path) -> None:
    kept = train(None).run
    assert looks_of(kept) == {}
    found = kept.show_examples(TensorDataset(DIGITS, TARGETS), shape=(8, 8))
    assert list(found) == list(looks_of(kept)) == listed(kept)
    train(None, run=tmp_path / "r")
    run = ls.open_run(tmp_path / "r")
    assert not (tmp_path / "r" / NAME).exists()
    assert payload(run)["examples"]["looks"] == []
    run.show_examples([str(i) for i in range(600)])
    assert {look.text for look in looks_of(run).values()} == {str(id) for id in listed(run)}
    with pytest.raises(KeyError, match="no examples were followed"):
        ls.watch(nn.Linear(1, 1)).run.show_examples([1])


def test_a_damaged_file_is_a_problem_and_the_page_goes_on(tmp_path: Path) -> None:
    train(lambda _: "text", run=tmp_path / "r")
    (tmp_path / "r" / NAME).write_text('{"version": 1, "shown": [{"id": 1}')
    run = ls.open_run(tmp_path / "r")
    assert [NAME in each for each in run.problems] == [True]
    body = payload(run)
    assert body["examples"]["looks"] == []
    assert NAME in body["problems"][-1]
    assert run.page().exists()
    assert run.report().exists()


def test_a_resumed_run_shows_what_is_notable_then(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    train(lambda id: f"first {id}", run=folder)
    train(None, run=folder, resume=True)  # without: the file stays as it is
    assert all((look.text or "").startswith("first") for look in looks_of(ls.open_run(folder)).values())
    train(lambda id: f"again {id}", run=folder, resume=True)
    run = ls.open_run(folder)
    assert {id: look.text for id, look in looks_of(run).items()} == {id: f"again {id}" for id in listed(run)}


def test_a_task_can_show_its_examples() -> None:
    class Words(ls.TupleTask):
        def show(self, example: Any) -> Any:
            return f"digit {int(example[1])}"

    run = train(TensorDataset(DIGITS, TARGETS), task=Words(), holdout=[(DIGITS[:8], TARGETS[:8])]).run
    assert {id: look.text for id, look in looks_of(run).items()} == {
        id: f"digit {int(TARGETS[id])}" for id in listed(run)
    }


@pytest.mark.parametrize("status", ["terminated by SIGTERM", "interrupted by KeyboardInterrupt: "])
def test_a_process_that_is_to_end_reads_nothing(status: str) -> None:
    asked: list[int] = []
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = ls.watch(model, optimizer, probes=[ls.ExampleLedger(show=asked.append)])
    logits = model(torch.rand(5, 4))
    logits.sum().backward()
    optimizer.step()
    w.examples(torch.arange(5), logits, torch.zeros(5, dtype=torch.int64))
    w.end_epoch()
    w.close(status)
    assert asked == []
    assert len(w.run.examples()) == 5


def test_replay_shows_them_too(tmp_path: Path) -> None:
    model = nn.Linear(64, 10)
    data = ls.IndexedDataset(TensorDataset(DIGITS[:50], TARGETS[:50]))
    run = ls.replay(
        [model, model], probes=[ls.ExampleLedger(show=data)], train=data, run=tmp_path / "r", progress=False
    )
    reasons = {look.reason for look in looks_of(run).values()}
    assert reasons == {"a vector of 64 numbers: if it is an image, ls.ShowExamples(data, shape=…)"}
