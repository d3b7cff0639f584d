"""What bit widths say of few examples, and how exactly they know small changes of a loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.model.bits.ledger import Ledger
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.outputs.activations import fused_activations
from learnscope.posttrain.session import AuditSession
from learnscope.probes.bits.bit_optimum import BitOptimum, recommended
from learnscope.probes.bits.bit_widths import BitWidths
from learnscope.probes.bits.columns import Configuration, frontier
from learnscope.record import Record
from learnscope.task import HuggingFaceTask
from probes.bits.bit_models import texts, trained_gpt2

Batches = list[dict[str, Tensor]]


@pytest.fixture(scope="module")
def gpt2() -> tuple[nn.Module, Batches]:
    return trained_gpt2()


def cell(record: Record, name: str, scope: str) -> tuple[Any, str | None]:
    (found,) = [(row.value, row.status) for row in record.rows() if (row.name, row.scope) == (name, scope)]
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_each_null_of_few_examples_has_its_reason_and_what_helps(gpt2: tuple[nn.Module, Batches], n: int) -> None:
    model, _ = gpt2
    session, batches = AuditSession(model), [texts([9, 7, 8, 6, 5][:n], 9)]
    with session.sharing(batches):
        widths = session.measure(BitWidths(bits=(8, 2)), batches)
        optimum = session.measure(BitOptimum(bits=(8, 2)), batches)
    for record in (widths, optimum):
        missing = [row for row in record.rows() if row.value is None]
        assert missing
        assert all(row.status for row in missing)
        ends = [str(row.status) for row in missing if row.name.endswith(("_low", "_high"))]
        assert ends
        assert all("too few" in status and "give more" in status for status in ends)
        assert "give more" in record.notes["no_intervals"]
    for name in ("kl_low", "kl_high", "loss_change_low", "loss_change_high"):
        assert cell(widths, name, "original") == (0, None), "the model beside itself is known"
        assert cell(optimum, name, "original") == (0, None)
    # without an interval nobody knows whether the mix is better
    assert optimum.notes["verdict"] == "uniform"


def test_a_change_of_the_loss_has_the_digits_of_float64(gpt2: tuple[nn.Module, Batches]) -> None:
    """From the logits of the float32 model as they are: losses in float32 differ by 1e-4 of their small difference."""
    model, batches = gpt2
    task, units = HuggingFaceTask(), find_units(model)
    found = AuditSession(model).measure(BitWidths(bits=(8,)), batches)

    def losses() -> Tensor:
        each = []
        for batch in batches:
            out = task.positions(model, batch)
            assert out.targets is not None
            logits = out.logits if out.rows is None else out.logits[out.rows]
            each.append(-F.log_softmax(logits.double(), -1).gather(1, out.targets[:, None])[:, 0])
        return torch.cat(each)

    def change() -> float:
        own = losses()
        with quantised(model, {unit.name: 8 for unit in units}, units=units):
            return float((losses() - own).mean())

    model.eval()
    with torch.no_grad():
        stock = change()
        with fused_activations(model):
            same_logits = change()
    assert next(model.parameters()).dtype == torch.float32
    assert 1e-7 < abs(stock) < 1e-2
    value = cell(found, "loss_change", "uniform_8")[0]
    assert value == pytest.approx(same_logits, rel=1e-9)
    assert value == pytest.approx(stock, abs=5e-8), "its activations as they are written round the logits otherwise"


def configuration(name: str, size: int, kl: list[float]) -> Configuration:
    scores = {"kl": sum(kl) / len(kl), "regression": False, "sums": {"kl": kl, "positions": [1] * len(kl)}}
    return Configuration(name, {"unit": size}, scores, Ledger(100, size, 4.0, 4.0, 100 / size, {"unit": size}))


def test_what_cannot_be_told_from_chance_is_not_recommended() -> None:
    """A mix whose damage is a little lower on average, on few examples, on alike ones and on enough."""
    even, less = [0.1, 0.5, 0.2, 0.9, 0.3, 0.7, 0.4, 0.8], [0.08, 0.4, 0.15, 0.7, 0.25, 0.6, 0.3, 0.6]
    for n, name, why in ((4, "uniform_4", "4 examples are too few"), (8, "optimal", None)):
        optimal, rival = configuration("optimal", 40, less[:n]), configuration("uniform_4", 40, even[:n])
        best, reason = recommended(optimal, [rival], max_bytes=40)
        assert best.name == name
        assert (reason is None) == (why is None)
        assert why is None or str(reason).startswith(why)
    mixed_up = [0.5, 0.1, 0.9, 0.2, 0.7, 0.3, 0.75, 0.35]  # lower on average, by chance
    best, reason = recommended(configuration("optimal", 40, mixed_up), [configuration("uniform_4", 40, even)])
    assert (best.name, reason) == ("uniform_4", None)
    best, reason = recommended(configuration("optimal", 40, even), [configuration("uniform_4", 40, less)])
    assert (best.name, reason) == ("uniform_4", None)


def test_a_frontier_without_intervals_says_so() -> None:
    few = [configuration("small", 20, [0.3, 0.2, 0.4]), configuration("large", 40, [0.1, 0.3, 0.2])]
    front, notes = frontier(few)
    assert [point.name for point in front] == ["small", "large"], "not known to be as good: both are kept"
    assert notes["no_intervals"].startswith("3 examples are too few")
    enough = [0.3, 0.2, 0.4, 0.35, 0.25, 0.3, 0.28, 0.33, 0.22, 0.38]
    front, notes = frontier([configuration("small", 20, enough), configuration("large", 40, [x / 2 for x in enough])])
    assert ([point.name for point in front], notes) == (["small", "large"], {})
