"""Loops with Accelerate against a loop without it: the same numbers, and the same weights bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import ExponentialLR

import learnscope as ls
from integrations import raw
from learnscope.integrations.accelerate import watch_accelerate


def prepared(folder: Path, **options: Any) -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=raw.PARTS, project_dir=str(folder), **options)
    model = raw.net()
    optimizer = AdamW(model.parameters(), lr=raw.RATE)
    # a scheduler of one process steps with the optimizer, once for each of its steps
    return accelerator, *accelerator.prepare(model, optimizer, raw.data(), ExponentialLR(optimizer, raw.DECAY))


def train(parts: Any, epochs: int, save: Path | None = None) -> None:
    accelerator, model, optimizer, loader, schedule = parts
    for epoch in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), raw.CLIP)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        if save is not None:
            accelerator.save_state(str(save / f"epoch-{epoch}"))


def watching(parts: Any, **options: Any) -> Any:
    return watch_accelerate(
        *parts[:3], **{"probes": raw.probes(), "holdout": raw.held_out(), "strict": True, **options}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("whole")
    parts = prepared(folder)
    w = watching(parts)
    train(parts, 5, save=folder)
    parts[0].end_training()
    return parts[1], w.run, folder, parts[0]


def test_one_line_gives_the_numbers_of_a_raw_loop_and_changes_no_bit(whole: Any, tmp_path: Path) -> None:
    model, run, folder, accelerator = whole
    plain = prepared(tmp_path)
    train(plain, 5)
    expected, steps = raw.train(5)
    raw.assert_equal(raw.recorded(run), steps)
    assert raw.differing(raw.weights(plain[1]), raw.weights(model)) == []
    assert raw.differing(raw.weights(expected), raw.weights(model)) == []
    assert (run.status, run.path) == ("finished", folder / "learnscope")
    assert "loss" not in run.frame("Holdout") or run.frame("Holdout").loss.isna().all(), "its loss is known"
    own = {"backward", "end_training"} & vars(accelerator).keys()
    assert own == set(), "the accelerator has its own methods again"
    assert accelerator._save_model_state_pre_hook == {}


@pytest.mark.parametrize("late", [False, True], ids=["fresh", "in the middle"])
def test_load_state_goes_on_with_the_run(whole: Any, late: bool, tmp_path: Path) -> None:
    """Also from a checkpoint whose state the run folder has dropped, and after steps that are then taken again."""
    model, _, folder, _ = whole
    parts = prepared(tmp_path)
    w = watching(parts)
    if late:
        train(parts, 1)
    parts[0].load_state(str(folder / "epoch-0"))
    train(parts, 4)
    w.close()
    assert w.run.path == folder / "learnscope"
    assert w.run.manifest["attempts"][-1]["start_step"] == 4
    assert w.run.manifest["attempts"][-1]["state_restored"] is True
    raw.assert_equal(raw.recorded(w.run), raw.train(5)[1])
    assert raw.differing(raw.weights(parts[1]), raw.weights(model)) == []


def test_a_project_that_was_moved_goes_on_with_its_own_run(whole: Any, tmp_path: Path) -> None:
    """The checkpoint knows the run from where it lies; the one at the old place is left alone."""
    _, _, first, _ = whole
    before = len(ls.open_run(first / "learnscope").manifest["attempts"])
    shutil.copytree(first, tmp_path / "moved")
    parts = prepared(tmp_path / "moved")
    w = watching(parts)
    parts[0].load_state(str(tmp_path / "moved" / "epoch-0"))
    train(parts, 1)
    w.close()
    assert w.run.path == tmp_path / "moved" / "learnscope"
    assert w.run.manifest["attempts"][-1]["state_restored"] is True
    assert len(ls.open_run(first / "learnscope").manifest["attempts"]) == before


def test_a_checkpoint_without_a_state_is_said(tmp_path: Path) -> None:
    parts = prepared(tmp_path)
    parts[0].save_state(str(tmp_path / "before"))
    w = watching(parts)
    parts[0].load_state(str(tmp_path / "before"))
    with pytest.warns(ls.ProbeWarning, match="before was saved without learnscope"):
        train(parts, 1)
    w.close()


def test_trackers_get_a_few_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    parts = prepared(tmp_path, log_with="tensorboard")
    parts[0].init_trackers("board")
    with watching(parts) as w:
        train(parts, 1)
        w.log(extra=1.0)  # the session's own methods
    parts[0].end_training()
    board = EventAccumulator(str(next(tmp_path.rglob("events*")).parent)).Reload()
    values = [(event.step, event.value) for event in board.Scalars("learnscope/gradient_norm")]
    assert [step for step, _ in values] == [1, 2, 3, 4]
    assert [value for _, value in values] == pytest.approx(raw.train(1)[1].before, rel=1e-5)
    assert len(board.Tags()["scalars"]) <= 6
    assert list(w.run.frame("Loss", "extra").step) == [4]
