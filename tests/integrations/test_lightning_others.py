"""Lightning where a test needs a process of its own: two ranks, wandb, the package's older name, the examples' jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import learnscope as ls
from integrations import raw

START = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from integrations import raw
"""
OLDER_NAME = """
import pytorch_lightning
from learnscope.integrations.lightning import LearnscopeCallback
from torch.nn import functional as F

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = raw.net()
    def training_step(self, batch, index):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=raw.RATE)

assert issubclass(LearnscopeCallback, pytorch_lightning.Callback)
callback = LearnscopeCallback(probes=raw.probes(), holdout=raw.held_out())
trainer = pytorch_lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=[callback],
    enable_progress_bar=False, accumulate_grad_batches=raw.PARTS, gradient_clip_val=raw.CLIP)
trainer.fit(Module(), raw.data())
raw.DECAY = 1.0
raw.assert_equal(raw.recorded(callback.w.run), raw.train(1)[1])
print("lightning" in sys.modules)
"""
BOTH_NAMES = """
import lightning
import pytorch_lightning
from learnscope.integrations.lightning import LearnscopeCallback
from torch.nn import functional as F

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = raw.net()
    def training_step(self, batch, index):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=raw.RATE)

assert not issubclass(LearnscopeCallback, pytorch_lightning.Callback)
callback = LearnscopeCallback(probes=raw.probes(), holdout=raw.held_out())
trainer = pytorch_lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=[callback],
    enable_progress_bar=False, accumulate_grad_batches=raw.PARTS, gradient_clip_val=raw.CLIP)
trainer.fit(Module(), raw.data())
raw.DECAY = 1.0
raw.assert_equal(raw.recorded(callback.w.run), raw.train(1)[1])
print("lightning" in sys.modules)
"""
TWO_RANKS = """
from integrations.lightning_parts import Module, trainer, watching

module, callback = Module(), watching()
fitted = trainer(Path("."), callback, strategy="ddp", devices=2)
fitted.fit(module, raw.data(), raw.held_out())
if fitted.global_rank == 1:
    assert callback.w.run.path is None
    assert callback.w.steps == 4
"""
WANDB = """
from integrations.lightning_parts import Module, trainer, watching
from lightning.pytorch.loggers import WandbLogger

module, callback = Module(), watching()
logger = WandbLogger(project="tiny", save_dir=".", offline=True)
trainer(Path("."), callback, logger=logger, log_every_n_steps=1).fit(module, raw.data(), raw.held_out())
logger.experiment.finish()
"""


def run_program(program: str, folder: Path, **variables: str) -> str:
    file = folder / "program.py"
    file.write_text(START + program)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-W", "ignore", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
@pytest.mark.parametrize(("program", "other"), [(OLDER_NAME, "False"), (BOTH_NAMES, "True")], ids=["alone", "both"])
def test_the_older_name_of_the_package(program: str, other: str, tmp_path: Path) -> None:
    """Where the program has imported both, a callback of one works with a trainer of the other."""
    assert run_program(program, tmp_path).splitlines()[-1] == other


@pytest.mark.soak
def test_of_two_ranks_the_first_records(tmp_path: Path) -> None:
    run_program(TWO_RANKS, tmp_path)
    run = ls.open_run(tmp_path / "learnscope")
    assert (run.status, run.last_step) == ("finished", 4)
    assert len(raw.recorded(run).before) == 4


@pytest.mark.soak
def test_a_few_numbers_go_to_wandb(tmp_path: Path) -> None:
    """Read back by wandb's own reader of what it wrote offline."""
    run_program(WANDB, tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    import wandb

    core = Path(wandb.__file__).parent / "bin" / "wandb-core"
    file = str(next(tmp_path.rglob("*.wandb")))
    command = [str(core), "leet", "inspect", "-json", "-no-observability", "-run-file", file]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [line["history"]["item"] for line in lines if line["type"] == "history"]
    key = "learnscope/gradient_norm"
    norms = [(row["trainer/global_step"], row[key]) for row in rows if key in row]
    assert [step for step, _ in norms] == list(range(8))
    assert [value for _, value in norms] == pytest.approx(raw.train(2)[1].before, rel=1e-5)
    own = {name for row in rows for name in row if name.startswith("learnscope/")}
    assert len(own) <= 6
