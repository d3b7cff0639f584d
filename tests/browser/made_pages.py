"""Pages of every kind, with data and with none, from runs written by hand. Needs no torch."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from comparison.ranked import ranked_runs
from findings.adapters.test_adapters import MODULES, spectrum, truncation
from findings.made_run import MadeRun
from learnscope.comparison import compare
from learnscope.findings.examples.notable import show_notable
from learnscope.ledger import Ledger
from learnscope.ledger.show import ShowExamples
from learnscope.reading.gather import one_pass
from learnscope.record import Column, Table
from learnscope.report.page.writing import write_run, write_runs
from learnscope.run import Run, findings_in
from learnscope.store.reader import RunReader
from report.audit.audit_runs import AuditRun, made

STEPS, LAYERS, SPIKE = 400, 6, 257
HOSTILE = (
    "<script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 1'>",
    "../../etc/passwd",
    "a" * 10_000,
    "\u202eدخل_مخفي\u202c",
    "'\"`${window.hurt = 1}`",
    "</script><script>window.hurt = 1</script>",
)


def model(*columns: Column) -> list[Table]:
    return [Table("model", ["model"], list(columns))]


def training(layers: int = LAYERS, names: list[str] | None = None, rate: float = 0.01) -> MadeRun:
    """A run with a loss that spikes at one step and breaks at the end, and grids with holes and zeros."""
    names = names or [f"blocks.{i}" for i in range(layers)]
    run = MadeRun(layers=names, layer_types=dict.fromkeys(names, "Linear"))
    random = np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        loss = 2 * math.exp(-rate * step) + 0.05 * random.random() + (40.0 if step == SPIKE else 0.0)
        notes = {"rows": [f"row-{i}" for i in range(70)]} if step == SPIKE else {}
        run.write("Loss", step, model(Column("loss", [math.nan if step > 390 else loss])), notes=notes)
        run.write(
            "LearningRate", step, [Table("group", ["group_0"], [Column("learning_rate", [1e-3 * (1 - step / 500)])])]
        )
        if step % 4 == 0:
            norms = [
                None if (step // 4 + i) % 11 == 0 else 0.0 if i == 2 and step < 60 else 0.1 * 2**i / step
                for i in range(len(names))
            ]
            grads = [Column("norm", norms, {"stage": "stepped"}), Column("nan", [0] * len(names))]
            total = [Column("norm", [10 / step], {"stage": "stepped"}), Column("nan", [0])]
            run.write("GradientFlow", step, [*model(*total), Table("layer", names, grads)], phase="before_step")
        if step % 20 == 0:
            rise = 0.6 + 0.002 * step
            run.write("Holdout", step, model(Column("holdout_loss", [max(2 * math.exp(-rate * step), 0) + rise]),
                                             Column("holdout_accuracy", [min(0.9, step / 300)])))  # fmt: skip
            moved = Column("update_to_weight", [1e-3 * (i + 1) for i in range(len(names))])
            run.write("ParameterChange", step, [Table("layer", names, [moved])])
    return run


def with_examples(run: MadeRun) -> MadeRun:
    ledger, random = Ledger(), np.random.default_rng(1)
    hard = random.random(300)
    for epoch in range(6):
        p = np.clip(1 - hard * (1 - epoch / 8) + 0.1 * random.random(300), 0.01, 0.99)
        right = p > 0.5
        ledger.update(np.arange(300), p_gold=p, correct=right, margin=p - 0.5, loss=-np.log(p), el2n=1.2 * (1 - p),
                      epoch=epoch, target=np.arange(300) % 5)  # fmt: skip
    run.backend.put_examples(ledger)
    return run


def picture(id: int) -> np.ndarray[Any, Any]:
    """Wide, in colours, other ones for every example."""
    across, down = np.meshgrid(np.linspace(0, 1, 40), np.linspace(0, 1, 20))
    return np.stack([across, down, np.full_like(across, id / 300)], -1)


def with_looks(run: MadeRun) -> MadeRun:
    """Every third example is an image, every third a text, hostile ones among them, and the others cannot be shown."""

    def example(id: int) -> Any:
        return picture(id) if id % 3 == 0 else HOSTILE[id % len(HOSTILE)] if id % 3 == 1 else np.zeros(7)

    show_notable(run.backend, ShowExamples(example))
    return run


def adapters() -> MadeRun:
    run = MadeRun(layers=[f"model.layers.{i}" for i in range(6)])
    for step in range(10, 101, 10):
        run.write("Loss", step, model(Column("loss", [3.0 / step])))
        spectrum(run, step, {module: 0.1 * step + place for place, module in enumerate(MODULES)})
    truncation(run, 100, dict.fromkeys(MODULES, 2), kept=0.25, kl=0.004, scale=0.4)
    kept = [Column("parameters_kept", [share], {"cut": cut, "energy": energy})
            for cut, energy, share in (("each", 0.0, 0.0), ("each", 0.9, 0.25), ("all", 0.9, 0.2))]  # fmt: skip
    run.write("AdapterTruncation", 100, model(*kept))
    return run


def bare_adapters() -> MadeRun:
    """An adapter of which nothing could be measured."""
    run = MadeRun()
    labels = {"adapter": "default", "family": "ia3"}
    run.write(
        "AdapterSpectrum", 10, [Table("module", ["a"], [Column("effective_rank", [None], labels, {0: "a vector"})])]
    )
    return run


def page_of(reader: RunReader, folder: Path, name: str) -> Path:
    run = one_pass(reader)
    return write_run(run, findings_in(run), folder, name=name)


def comparison(folder: Path, *, bare: bool = False) -> Path:
    runs = [MadeRun(), MadeRun()] if bare else [training(), training(rate=0.02)]
    if not bare:
        runs[1].manifest["optimizers"][0]["groups"][0]["lr"] = 5e-3
    opened = [Run(run.reader.backend) for run in runs]
    return compare(opened, names=["first", "other"]).page(folder)


def runs_page(folder: Path, *, bare: bool = False) -> Path:
    runs = {} if bare else {"a": training(), "b": adapters(), "c": MadeRun()}
    read = {name: (reader := one_pass(run.reader), findings_in(reader)) for name, run in runs.items()}
    return write_runs(read, folder, name="runs", broken={"runs/d": "not readable JSON"} if bare else {})


PAGES: dict[str, Callable[[Path], Path]] = {
    "training": lambda folder: page_of(with_examples(training()).reader, folder, "training"),
    "examples": lambda folder: page_of(with_looks(with_examples(training())).reader, folder, "examples"),
    "training without data": lambda folder: page_of(MadeRun().reader, folder, "empty"),
    "audit": lambda folder: page_of(made().reader, folder, "audit"),
    "audit without data": lambda folder: page_of(AuditRun().reader, folder, "nothing"),
    "adapters": lambda folder: page_of(adapters().reader, folder, "adapters"),
    "adapters without data": lambda folder: page_of(bare_adapters().reader, folder, "bare"),
    "comparison": comparison,
    "comparison without data": lambda folder: comparison(folder, bare=True),
    "ranking": lambda folder: compare(
        [Run(run.backend) for run in ranked_runs()], names=["base", "tuned", "large"]
    ).page(folder),
    "runs": runs_page,
    "runs without data": lambda folder: runs_page(folder, bare=True),
}


def make(kind: str, folder: Path) -> Path:
    """Write the page of a kind as `<kind>.html`."""
    written = PAGES[kind](folder / kind.replace(" ", "-"))
    target = folder / f"{kind.replace(' ', '-')}.html"
    shutil.move(written, target)
    return target
