"""Embeddings that get no gradient: tokens that are not read."""

from __future__ import annotations

import pytest

from findings.made_training import LAYERS, MadeTraining, falling, flat
from learnscope.record import Column, Finding, Table

TWO = {"majority_share": 0.52, "target_entropy": 0.69, "classes": 2, "classes_seen": 2, "predicted_majority": 0.8}


def alarms(losses: list[float], kind: str, accuracy: float = 0.5) -> list[Finding]:
    """The first layer, of a type, gets a gradient of exactly 0 and does not move."""
    run = MadeTraining()
    run.manifest["model"]["layer_types"] = {"first": kind, "second": "Linear", "last": "Linear"}
    for step, loss in enumerate(losses, 1):
        run.loss(step, loss)
        if step % 10:
            continue
        run.gradients(step, {name: 0.0 if name == "first" else 0.5 for name in LAYERS})
        layers = [Column(name, [0.0, 0.01, 0.01]) for name in ("update_to_weight", "l2")]
        whole = [Column("update_to_weight", [0.01]), Column("l2", [0.1])]
        tables = [Table("model", ["model"], whole), Table("layer", LAYERS, layers)]
        run.write("ParameterChange", step, tables, notes={"span": [step - 10, step]})
    return run.objective(len(losses), value=losses, **TWO, objective_accuracy=accuracy).alarms


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_tokens_that_are_not_read(kind: str) -> None:
    [finding] = alarms(flat(level=0.69), kind)
    assert (finding.kind, finding.cause) == ("labels_unrelated", True)
    assert finding.title.startswith("The tokens are not read")
    assert "only padding is read" in finding.detail
    assert "attention mask" in finding.advice
    assert {"zero_gradients", "not_learning"} <= {inside.kind for inside in finding.taken_in}


def test_dead_units_have_an_activation() -> None:
    assert [finding.kind for finding in alarms(flat(level=0.69), "Linear")] == ["dead_units"]


def test_an_embedding_that_rests_in_a_model_that_learns() -> None:
    """As a table of types of which only the padding row is used."""
    found = alarms(falling(start=0.69, end=0.05), "Embedding", accuracy=0.95)
    assert not any(finding.cause for finding in found)
