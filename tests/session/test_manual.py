"""A session that its caller drives."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from learnscope.core.handed import HandedOver
from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, ProbeWarning
from learnscope.probes.outputs.loss import Loss
from learnscope.run import open_run
from learnscope.session.manual import ManualSession, UnstoredBackend, own_backend
from learnscope.store.backend import MemoryBackend, RunError


class Size(Probe):
    """The number of parameters; refuses large models, and fails at step 13."""

    reads_only: ClassVar[bool] = True

    def open(self, moment: Moment) -> None:
        moment.state["opened"] = moment.state.get("opened", 0) + 1
        if sum(p.numel() for p in moment.model.parameters()) > 100:
            raise ValueError("too large")

    def measure(self, moment: Moment) -> dict[str, int]:
        if moment.step == 13:
            raise ArithmeticError("thirteen")
        return {"size": sum(p.numel() for p in moment.model.parameters())}


def session(run: Path | None = None, *, strict: bool = True) -> ManualSession:
    return ManualSession({"size": Size(), "loss": Loss()}, own_backend(run), source="test", strict=strict)


def sizes(made: ManualSession) -> list[int]:
    return made.run.frame("Size", "size").value.astype(int).tolist()


def test_every_moment_may_be_of_another_model() -> None:
    made = session()
    assert not made.begun
    for step, width in enumerate((2, 3), 1):
        made.open(nn.Linear(width, 1))
        records = made.measure(made.moment("epoch", step=step, epoch=step, handed=HandedOver({"loss": [0.5]})))
        assert set(records) == {"size", "loss"}
    assert sizes(made) == [3, 4]
    assert made.state("size") == {"opened": 1}


def test_a_model_that_is_refused_begins_nothing(tmp_path: Path) -> None:
    made = session(tmp_path / "run")
    with pytest.raises(ValueError, match="too large"):
        made.open(nn.Linear(200, 1))
    with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
        made.open("model")  # type: ignore[arg-type]
    assert not (tmp_path / "run" / "run.json").exists()
    made.open(nn.Linear(2, 1))
    made.measure(made.moment("epoch", step=1))
    made.close()
    assert open_run(tmp_path / "run").manifest["attempts"][-1]["last_step"] == 1
    made.close()
    with pytest.raises(RunError, match="name another folder"):
        session(tmp_path / "run")


def test_what_fails_is_raised_or_recorded() -> None:
    strict, lenient = session(), session(strict=False)
    strict.open(nn.Linear(2, 1))
    with pytest.raises(ArithmeticError):
        strict.measure(strict.moment("epoch", step=13))
    assert strict.measure(strict.moment("epoch", step=14))["size"].step == 14
    lenient.open(nn.Linear(2, 1))
    with pytest.warns(ProbeWarning, match="thirteen"):
        failed = lenient.measure(lenient.moment("epoch", step=13))["size"]
    assert failed.error == "ArithmeticError: thirteen"


def test_one_probe_can_be_fired_alone() -> None:
    made = session()
    made.open(nn.Linear(2, 1))
    made.fire("size", made.moment("epoch", step=1))
    assert set(made.take()) == {"size"}
    assert made.take() == {}


def test_a_run_that_is_not_kept_holds_nothing() -> None:
    made = ManualSession({"size": Size()}, UnstoredBackend(), source="test")
    made.open(nn.Linear(2, 1))
    assert made.measure(made.moment("epoch", step=1))["size"].step == 1
    assert list(made.run.records()) == []


def test_data_tell_how_they_are_read() -> None:
    made = ManualSession({}, MemoryBackend(), source="test")
    subject = made.set_model(nn.Linear(2, 2))
    before = torch.get_rng_state()
    made.set_data(None, holdout=[(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))])
    assert torch.equal(torch.get_rng_state(), before)
    assert subject.task is not None
    assert made.moment("epoch", step=1).holdout.logits.shape == (3, 2)
