"""Sinks for what a trainer reports to already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import learnscope as ls
import learnscope.sinks
from sinks.made import finding, train
from sinks.test_tensorboard import expected, read


def test_names(tmp_path: Path) -> None:
    found = ls.sinks_for(["tensorboard", "console", "none", "prometheus"], folder=tmp_path)
    assert [type(sink).__name__ for sink in found] == ["TensorBoardSink", "ConsoleSink", "PrometheusSink"]
    found[0].close()
    assert ls.sinks_for(None) == ls.sinks_for("none") == ls.sinks_for([]) == []
    with pytest.raises(ValueError, match="Did you mean 'wandb'"):
        ls.sinks_for("wandbb")
    with pytest.raises(ValueError, match="needs the folder"):
        ls.sinks_for("tensorboard")
    with pytest.warns(ls.ProbeWarning, match="no sink for comet_ml: its numbers are in the run folder"):
        assert ls.sinks_for(["comet_ml"]) == []
    with pytest.warns(ls.ProbeWarning, match="no sink for pathlib"):
        assert ls.sinks_for(tmp_path) == []
    assert learnscope.sinks.sinks_for is ls.sinks_for
    own = ls.ConsoleSink()
    assert ls.sinks_for([own]) == [own]


def test_a_summary_writer_is_written_to_and_stays_open(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(tmp_path / "tb"))
    (sink,) = ls.sinks_for(writer)
    w = train(6, sinks=[sink], strict=True)
    assert writer.file_writer is not None, "closed"
    sink.alert(finding())  # type: ignore[attr-defined]
    writer.add_scalar("mine", 1.0, 7)
    writer.close()
    found = read(tmp_path / "tb")
    assert [step for step, _, _ in found.pop("mine")] == [7]
    assert {tag: [(s, v) for s, _, v in points] for tag, points in found.items()} == {
        tag: [(s, v) for s, _, v in points] for tag, points in expected(w.run).items()
    }


@pytest.mark.soak
def test_a_logger_of_lightning_is_written_to_and_stays_open(tmp_path: Path) -> None:
    loggers: Any = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers.TensorBoardLogger(tmp_path, name="pl")
    train(3, sinks=ls.sinks_for([logger]), strict=True)
    logger.log_metrics({"mine": 1.0}, step=4)
    logger.finalize("success")
    assert {"mine", "Loss/loss"} <= set(read(Path(logger.log_dir)))


def test_each_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name, sink in {"wandb": ls.WandbSink, "mlflow": ls.MLflowSink, "trackio": ls.TrackioSink}.items():
        for module in [module for module in sys.modules if module.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"pip install learnscope\[{name}\]"):
            sink()
