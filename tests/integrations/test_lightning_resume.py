"""A Lightning checkpoint carries the session: a resumed run goes on as if it had never stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import learnscope as ls
from integrations import raw
from integrations.lightning_parts import Module, run_of, trainer, watching

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path"),
]


def saving(**options: Any) -> Any:
    from lightning.pytorch.callbacks import ModelCheckpoint

    return ModelCheckpoint(filename="{epoch}", save_top_k=-1, every_n_epochs=1, **options)


def fit(folder: Path, epochs: int, checkpoint: Path | None = None, **options: Any) -> tuple[Any, Module]:
    callback, module = watching(**options), Module()
    fitted = trainer(folder, callback, saving(dirpath=folder), max_epochs=epochs, enable_checkpointing=True)
    fitted.fit(module, raw.data(), raw.held_out(), ckpt_path=checkpoint)
    return run_of(callback), module


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("whole")
    return *fit(folder, 5), folder


def test_a_resumed_fit_is_one_run_with_the_numbers_of_an_uninterrupted_one(whole: Any, tmp_path: Path) -> None:
    """From the first of five checkpoints, of which the run itself keeps no state any more."""
    _, module, first = whole
    assert len(list((first / "learnscope" / "state").iterdir())) == 3
    shutil.copytree(first, tmp_path / "moved")
    run, resumed = fit(tmp_path / "moved", 5, first / "epoch=0.ckpt")
    assert run.path == first / "learnscope"
    assert [attempt["start_step"] for attempt in run.manifest["attempts"]] == [0, 4]
    assert run.manifest["attempts"][1]["state_restored"] is True
    assert raw.differing(raw.weights(module), raw.weights(resumed)) == []
    raw.assert_equal(raw.recorded(run), raw.train(5)[1])
    assert run.status == "finished"


def test_a_checkpoint_holds_nothing_that_only_pickle_could_read(whole: Any) -> None:
    checkpoint = torch.load(whole[2] / "epoch=0.ckpt", weights_only=True)
    carried = checkpoint["callbacks"]["LearnscopeCallback"]
    assert carried["step"] == 4
    assert carried["state"].dtype == torch.uint8


def test_a_run_that_is_gone_is_said_and_a_new_one_begins_at_the_step(whole: Any, tmp_path: Path) -> None:
    checkpoint = torch.load(whole[2] / "epoch=0.ckpt", weights_only=True)
    checkpoint["callbacks"]["LearnscopeCallback"]["run"] = str(tmp_path / "gone")
    torch.save(checkpoint, tmp_path / "gone.ckpt")
    with pytest.warns(ls.ProbeWarning, match=r"goes on at step 4, and its run, .*gone, is not there"):
        run, _ = fit(tmp_path, 2, tmp_path / "gone.ckpt")
    assert list(run.frame("Loss", "loss").step) == [5, 6, 7, 8]
    # a run of another training where this one's could have been moved to
    with pytest.warns(ls.ProbeWarning, match=r"its run, .*gone.learnscope, is not there"):
        carried = checkpoint["callbacks"]["LearnscopeCallback"]
        carried["run"] = str(tmp_path / "away" / "gone" / "learnscope")
        torch.save(checkpoint, tmp_path / "gone.ckpt")
        other, _ = fit(tmp_path, 2, tmp_path / "gone.ckpt")
    assert (other.path.name, len(other.manifest["attempts"])) == ("learnscope-2", 1)
    del checkpoint["callbacks"]["LearnscopeCallback"]
    torch.save(checkpoint, tmp_path / "other.ckpt")
    with pytest.warns(ls.ProbeWarning, match="the checkpoint was saved without learnscope"):
        run, _ = fit(tmp_path / "new", 2, tmp_path / "other.ckpt")
    assert list(run.frame("Loss", "loss").step) == [5, 6, 7, 8]


def test_a_checkpoint_that_is_saved_after_the_fit_can_be_gone_on_with(tmp_path: Path) -> None:
    callback, module = watching(run=tmp_path / "named"), Module()
    fitted = trainer(tmp_path, callback, max_epochs=1)
    fitted.fit(module, raw.data(), raw.held_out())
    fitted.save_checkpoint(tmp_path / "after.ckpt")
    run, _ = fit(tmp_path, 2, tmp_path / "after.ckpt", run=tmp_path / "named")
    assert run.path == tmp_path / "named"
    raw.assert_equal(raw.recorded(run), raw.train(2)[1])
