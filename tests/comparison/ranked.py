"""Audits of models that were measured on the same texts, made up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from learnscope.record import Column, Table
from report.audit.audit_runs import AuditRun, made

TEXTS = [f"text {number}" for number in range(16)]


def shared_texts(
    run: AuditRun, stored: Mapping[str, tuple[float, float]], *, tokens: str = "same", classes: int = 100,
    size: float = 4.0, predicts: bool = True,
) -> None:  # fmt: skip
    """By way to store the model, its bytes and its loss a token, which differs a little from text to text."""
    positions = [20.0] * len(TEXTS)
    spread = np.linspace(-0.2, 0.2, len(TEXTS))
    columns = [Column("text_positions", positions), Column("text_bytes", [20.0 * size] * len(TEXTS))]
    for name, (_, loss) in stored.items():
        columns.append(Column("text_loss", (20 * (loss + spread)).tolist(), {"configuration": name}))
        columns.append(Column("text_right", [5.0] * len(TEXTS), {"configuration": name}))
    sizes = [Column("packed_bytes", [each for each, _ in stored.values()])]
    tables = [Table("text", TEXTS, columns), Table("configuration", list(stored), sizes)]
    read_as = {text: f"{tokens} {text}" for text in TEXTS}
    run.once("SharedTexts", tables, examples=len(TEXTS), tokens=predicts, classes=classes, read_as=read_as)


def beside_base(run: AuditRun, base: str) -> None:
    names = ["h.0", "h.1", "h.2"]
    columns = [
        Column("relative_distance", [0.1, 0.0, 0.3]), Column("kl", [1e-3, 0.0, 0.2]),
        Column("loss_change", [-1e-3, 0.0, 0.4]), Column("loss_change_low", [-2e-3, 0.0, 0.3]),
        Column("loss_change_high", [1e-3, 0.0, 0.5]),
    ]  # fmt: skip
    notes = {"order": ["h.0", "h.2"], "go_back": ["h.0"], "unchanged": ["h.1"], "base": base, "span": [0, 0]}
    run.once("LayerRewind", [Table("layer", names, columns)], **notes, judged_by="loss")


def ranked_runs() -> list[AuditRun]:
    """A base, one fine-tuned from it, and a larger one that is worse in every way."""
    runs = [made(2) for _ in range(3)]
    shared_texts(runs[0], {"original": (4e6, 3.0), "uniform_8": (1e6, 3.002), "uniform_4": (0.5e6, 3.3)})
    shared_texts(runs[1], {"original": (4e6, 2.9), "uniform_8": (1e6, 2.905), "uniform_4": (0.5e6, 2.93)})
    shared_texts(runs[2], {"original": (8e6, 3.2), "uniform_4": (1e6, 3.5)})
    beside_base(runs[1], "base")
    return runs
