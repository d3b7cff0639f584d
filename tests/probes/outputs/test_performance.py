"""Performance against sums by hand in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import recall_score
from torch import Tensor, nn

import learnscope as ls
import learnscope.tensor.outputs.ranks as ranks
from learnscope.intervals import ratio_interval
from learnscope.posttrain.session import AuditSession
from learnscope.probes.outputs.performance import Performance
from learnscope.quantities.outputs import Performance as Q
from learnscope.reading.cells import value
from learnscope.record import Record
from learnscope.task import HuggingFaceTask, Task, TupleTask
from probes.reference import array, tiny_gpt2, tokens


class Given(nn.Module):
    """Gives out its input as logits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def measured(model: nn.Module, data: Any, task: Task | None = None, **options: Any) -> Record:
    return AuditSession(model, task=task).measure(Performance(**options), data)


def status(record: Record, name: str, **labels: Any) -> str | None:
    [row] = [row for row in record.rows() if row.name == name and row.labels == labels]
    assert row.value is None
    return row.status


def nll(logits: np.ndarray[Any, Any], target: int) -> float:
    top = logits.max()
    return float(top + math.log(sum(math.exp(one - top) for one in logits)) - logits[target])


def rank(logits: np.ndarray[Any, Any], target: int) -> int:
    """Place of the target in a stable sort from the largest on: of equal ones the first comes first."""
    return int(np.argsort(-logits, kind="stable").tolist().index(target))


def by_hand(model: nn.Module, batches: list[dict[str, Tensor]]) -> list[list[tuple[float, int]]]:
    """For each example, loss and rank of each of its tokens that counts, by the rules written out."""
    out = []
    for batch in batches:
        with torch.no_grad():
            logits = array(model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits)
        for row in range(logits.shape[0]):
            mask, labels = batch["attention_mask"][row].tolist(), batch["labels"][row].tolist()
            places = [t for t in range(len(mask) - 1) if mask[t] and mask[t + 1] and labels[t + 1] != -100]
            out.append([(nll(logits[row, t], labels[t + 1]), rank(logits[row, t], labels[t + 1])) for t in places])
    return out


def ragged() -> list[dict[str, Tensor]]:
    """Two batches of different shape: padding right and left, ignored labels, an example with no target at all."""
    batches = []
    for size, length in ((3, 9), (2, 14)):
        ids = tokens(size, length)
        batches.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()})
    batches[0]["attention_mask"][0, 5:] = 0  # on the right, with labels that are no padding's
    batches[0]["attention_mask"][1, :4] = 0  # on the left
    batches[0]["labels"][2] = -100
    batches[1]["labels"][0, 3:7] = -100
    return batches


def test_a_language_model_on_ragged_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "CHUNK", 120)  # three positions at a time
    torch.manual_seed(1)
    model, batches = tiny_gpt2(), ragged()
    model.train()
    record = measured(model, batches, top_k=(1, 7, 39, 40))
    assert model.training
    examples = by_hand(model, batches)
    flat = [pair for example in examples for pair in example]
    loss = sum(each for each, _ in flat) / len(flat)
    assert len(flat) == 4 + 4 + 9 + 13
    assert value(record, Q.positions) == len(flat)
    assert value(record, Q.examples) == 4
    assert value(record, Q.loss) == pytest.approx(loss, rel=1e-6)
    assert value(record, Q.perplexity) == pytest.approx(math.exp(loss), rel=1e-6)
    assert value(record, Q.accuracy) == sum(place == 0 for _, place in flat) / len(flat)
    for k in (1, 7, 39):
        assert value(record, Q.top_k_accuracy, k=k) == sum(place < k for _, place in flat) / len(flat)
    assert status(record, "top_k_accuracy", k=40) == "the model has only 40 classes"
    assert str(status(record, "loss_low")).startswith("4 examples are too few")
    record, examples = measured(model, batches * 2), examples * 2
    sums = torch.tensor([sum(each for each, _ in example) for example in examples], dtype=torch.float64)
    low, high, _ = ratio_interval(sums.numpy(), [float(len(example)) for example in examples])
    assert value(record, Q.loss_low) == pytest.approx(low, rel=1e-6)
    assert value(record, Q.loss_high) == pytest.approx(high, rel=1e-6)
    assert value(record, Q.perplexity_low) == pytest.approx(math.exp(low), rel=1e-6)
    assert low < loss < high


def test_the_loss_is_over_tokens_not_over_batches() -> None:
    """The mean of the batches' means would give the short batch the weight of the long one."""
    logits = torch.zeros(5, 2)
    logits[4, 0] = 3.0
    data = [(logits[:4], torch.zeros(4, dtype=torch.long)), (logits[4:], torch.ones(1, dtype=torch.long))]
    expected = (4 * math.log(2) + nll(array(logits[4]), 1)) / 5
    assert value(measured(Given(), data), Q.loss) == pytest.approx(expected, rel=1e-6)


def test_ties_go_to_the_first_class_as_in_argmax() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(4, 1)
    record = measured(Given(), [(logits, torch.arange(4))], top_k=(1, 2, 3))
    assert value(record, Q.accuracy) == 0.25, "one of three equal ones, not all and not none"
    assert [value(record, Q.top_k_accuracy, k=k) for k in (1, 2, 3)] == [0.25, 0.5, 0.75]
    assert status(record, "perplexity") == (
        "the model does not predict tokens: its classes are no vocabulary, or its task has a loss of its own"
    )


def test_rows_with_nan_are_never_right_and_infinite_ones_have_a_rank() -> None:
    inf, nan = math.inf, math.nan
    logits = torch.tensor([[nan, 5.0, 1.0], [0.0, inf, 1.0], [2.0, -inf, 1.0], [3.0, 0.0, 1.0]])
    record = measured(Given(), [(logits, torch.tensor([1, 1, 0, 0]))], top_k=(1, 2))
    assert value(record, Q.accuracy) == 0.75
    assert value(record, Q.top_k_accuracy, k=2) == 0.75
    assert status(record, "loss") == "the losses of 2 of 4 examples are NaN"
    assert status(record, "loss_low") == "the losses of 2 of 4 examples are NaN"


def test_a_single_logit_is_yes_or_no() -> None:
    logits, targets = torch.tensor([2.0, -1.0, 0.5, 0.0]), torch.tensor([1, 0, 0, 0])
    record = measured(Given(), [(logits[:, None], targets)], top_k=(1, 5))
    by_hand = [math.log1p(math.exp(-2)), math.log1p(math.exp(-1)), math.log1p(math.exp(0.5)), math.log(2)]
    assert value(record, Q.loss) == pytest.approx(sum(by_hand) / 4, rel=1e-6)
    assert value(record, Q.accuracy) == value(record, Q.top_k_accuracy, k=1) == 0.75
    assert status(record, "top_k_accuracy", k=5) == "the model has only 2 classes"
    with pytest.raises(ValueError, match="single logit"):
        measured(Given(), [(logits[:, None], torch.tensor([2, 0, 0, 0]))])


def test_numbers_and_several_labels_have_no_accuracy() -> None:
    guessed, wanted = torch.randn(6, 2), torch.randn(6, 2)
    record = measured(Given(), [(guessed[:4], wanted[:4]), (guessed[4:], wanted[4:])])
    assert value(record, Q.loss) == pytest.approx(float(((array(guessed) - array(wanted)) ** 2).mean()), rel=1e-6)
    for name, labels in (("accuracy", {}), ("accuracy_low", {}), ("top_k_accuracy", {"k": 5})):
        assert "float targets" in str(status(record, name, **labels))
    assert "does not predict tokens" in str(status(record, "perplexity"))

    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=1, intermediate_size=8, vocab_size=20, num_labels=3,
        problem_type="multi_label_classification",
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    ids, labels = torch.randint(0, 20, (5, 4)), torch.randint(0, 2, (5, 3)).float()
    record = measured(model, [{"input_ids": ids, "labels": labels}])
    with torch.no_grad():
        z, y = array(model(input_ids=ids).logits), array(labels)
    expected = np.mean(np.logaddexp(0, z) - y * z)
    assert value(record, Q.loss) == pytest.approx(float(expected), rel=1e-5)
    assert "several yes/no answers" in str(status(record, "accuracy"))


def test_a_loss_of_the_tasks_own_is_no_perplexity() -> None:
    class Doubled(HuggingFaceTask):
        def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
            return 2 * super().losses(logits, targets)

    torch.manual_seed(0)
    model, batches = tiny_gpt2(), ragged()
    plain, doubled = measured(model, batches), measured(model, batches, Doubled())
    assert value(doubled, Q.loss) == pytest.approx(2 * float(value(plain, Q.loss) or 0), rel=1e-6)
    assert value(doubled, Q.accuracy) == value(plain, Q.accuracy)
    assert "a loss of its own" in str(status(doubled, "perplexity"))


def test_intervals_where_a_bootstrap_knows_nothing() -> None:
    logits = torch.eye(3).repeat(4, 1)
    record = measured(Given(), [(logits, torch.arange(3).repeat(4))], top_k=())
    assert value(record, Q.accuracy) == 1
    assert value(record, Q.accuracy_low) == pytest.approx(1 / (1 + 1.959963984540054**2 / 12)), "Wilson's, 12 of 12"
    assert str(status(record, "loss_low")).startswith("all 12 examples have the same value")
    one = measured(Given(), [(logits[:1], torch.tensor([0]))], top_k=())
    assert str(status(one, "loss_low")) == str(status(one, "loss_high"))
    assert str(status(one, "loss_low")).startswith("1 example is too few")


def test_what_has_no_targets_and_what_is_no_class() -> None:
    logits = torch.randn(4, 3)
    with pytest.raises(ValueError, match="has no targets for TupleTask"):
        measured(Given(), [(logits,)], TupleTask())
    with pytest.raises(ValueError, match="target 3 is none of the model's 3 classes"):
        measured(Given(), [(logits, torch.tensor([0, 1, 2, 3]))])
    record = measured(Given(), [(logits, torch.full((4,), -100))])
    assert value(record, Q.positions) == value(record, Q.examples) == 0
    for name in ("loss", "accuracy", "loss_low"):
        assert status(record, name) is not None
    assert status(record, "loss") == status(record, "accuracy") == "no position of the data has a target"


def test_half_precision_is_summed_in_full() -> None:
    logits = torch.randn(300, 50).bfloat16()
    targets = torch.randint(0, 50, (300,))
    record = measured(Given().bfloat16(), [(logits, targets)], top_k=(5,))
    rows = array(logits)
    assert value(record, Q.loss) == pytest.approx(
        sum(nll(row, int(t)) for row, t in zip(rows, targets, strict=True)) / 300, rel=1e-6
    )
    expected = [rank(row, int(t)) for row, t in zip(rows, targets, strict=True)]
    assert value(record, Q.top_k_accuracy, k=5) == sum(place < 5 for place in expected) / 300


def test_options_are_refused_early() -> None:
    for bad in ((0,), (1, 1), (2.5,), (True,)):
        with pytest.raises(ValueError, match="top_k"):
            Performance(top_k=bad)
    with pytest.raises(ValueError, match="resamples"):
        Performance(resamples=0)


def test_accuracy_by_class_is_scikit_learns_recall() -> None:
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(90, 6, generator=generator), torch.randint(4, (90,), generator=generator)
    y[y == 2] = 3  # a class that the data do not have
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 4)
    run = ls.audit(net, [(x[:50], y[:50]), (x[50:], y[50:])], probes=[ls.Performance()], strict=True)
    frame = run.frame("Performance", name="class_accuracy").set_index("scope")["value"]
    with torch.no_grad():
        predicted = net(x).argmax(1)
    wanted = recall_score(y, predicted, labels=[0, 1, 3], average=None)
    assert list(frame.index) == ["0", "1", "3"]
    assert frame.tolist() == pytest.approx(wanted.tolist())
    for number in (0, 1, 3):
        own = y == number
        ends = stats.binomtest(int((predicted == y)[own].sum()), int(own.sum())).proportion_ci(method="wilson")
        for end, bound in (("low", ends.low), ("high", ends.high)):
            found = run.frame("Performance", name=f"class_accuracy_{end}").set_index("scope")["value"]
            assert found[str(number)] == pytest.approx(bound)
    counts = run.frame("Performance", name="class_examples").set_index("scope")["value"]
    assert counts.tolist() == [int((y == number).sum()) for number in (0, 1, 3)]


def test_tokens_are_no_classes_of_their_own() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
    ids = torch.randint(9, (8, 5))
    run = ls.audit(net, [(ids[:, :-1], ids[:, 1:])], probes=[ls.Performance()], strict=True)
    assert "class_accuracy" not in set(run.frame("Performance")["name"])
