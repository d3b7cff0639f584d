"""The probe against NumPy in float64 and SciPy, from logits computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats.contingency import association
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from probes.reference import at_scope, rows, tiny_gpt2, tokens, values

PROBE = "GroupAccuracy"
CLASSES = 4
Batch = tuple[Tensor, Tensor, Tensor, Any]


def data(n: int, seed: int, tied: float) -> Batch:
    """The attribute, which the inputs show, is the class for a share of the examples."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=generator)
    other = torch.randint(CLASSES, (n,), generator=generator)
    attribute = torch.where(torch.rand(n, generator=generator) < tied, y, other)
    x = torch.randn(n, 6, generator=generator) + 0.8 * F.one_hot(y, 6) + F.one_hot(attribute, 6).roll(1, 1)
    return x, y, torch.arange(n), attribute


def model_of(outputs: int = CLASSES) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, outputs))


def trained(batch: Batch, steps: int = 60) -> nn.Sequential:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    return model


def audited(model: nn.Module, train: Any, test: Any, **options: Any) -> ls.Run:
    return ls.audit(model, train=train, test=test, probes=[ls.GroupAccuracy(**options)], strict=True)


def number(run: ls.Run, name: str) -> float:
    [value] = values(run, PROBE, name)
    return value


def why(run: ls.Run, name: str) -> str:
    [reason] = rows(run, PROBE, name).status
    return str(reason)


def split(batch: Batch, size: int) -> list[Batch]:
    return list(zip(*(torch.split(part, size) for part in batch), strict=True))  # type: ignore[arg-type]


TRAIN, TEST = data(400, 0, 0.9), data(300, 1, 0.0)


@pytest.fixture(scope="module")
def biased() -> tuple[ls.Run, np.ndarray[Any, Any]]:
    """A run, and the probabilities that its model gives to the test examples."""
    model = trained(TRAIN)
    run = audited(model, split(TRAIN, 64), split(TEST, 64))
    model.eval()
    with torch.no_grad():
        return run, torch.softmax(model(TEST[0]).double(), 1).numpy()


def test_groups_and_cells(biased: tuple[ls.Run, np.ndarray[Any, Any]]) -> None:
    run, p = biased
    y, attribute = TEST[1].numpy(), TEST[3].numpy()
    right = p.argmax(1) == y
    for a in range(CLASSES):
        there = attribute == a
        assert at_scope(run, PROBE, "accuracy", "group")[str(a)] == pytest.approx(right[there].mean())
        gold = p[np.arange(len(y)), y][there]
        assert at_scope(run, PROBE, "gold_probability", "group")[str(a)] == pytest.approx(gold.mean(), rel=1e-5)
        assert at_scope(run, PROBE, "loss", "group")[str(a)] == pytest.approx(-np.log(gold).mean(), rel=1e-5)
        assert at_scope(run, PROBE, "examples", "group")[str(a)] == there.sum()
        for c in range(CLASSES):
            cell = there & (y == c)
            assert at_scope(run, PROBE, "positions", "cell", target=c)[str(a)] == cell.sum()
            assert at_scope(run, PROBE, "accuracy", "cell", target=c)[str(a)] == pytest.approx(right[cell].mean())
    assert set(run.frame(PROBE, "accuracy", "group")["by"]) == {"group"}
    assert list(run.frame(PROBE, "accuracy", "group")["scope"]) == ["0", "1", "2", "3"]


def test_the_attribute(biased: tuple[ls.Run, np.ndarray[Any, Any]]) -> None:
    run, p = biased
    counts = np.zeros((CLASSES, CLASSES), dtype=np.int64)
    for a, c in zip(TRAIN[3].tolist(), TRAIN[1].tolist(), strict=True):
        counts[a, c] += 1
    assert number(run, "association") == pytest.approx(association(counts, method="cramer"), rel=1e-9)
    assert number(run, "train_examples") == 400
    suggests = counts.argmax(1)
    pairs = zip(TRAIN[3].tolist(), TRAIN[1].tolist(), strict=True)
    assert number(run, "train_conflicting") == sum(suggests[a] != c for a, c in pairs)
    assert number(run, "classes") == CLASSES
    predicted, y = p.argmax(1), TEST[1].numpy()
    suggested = suggests[TEST[3].numpy()]
    aligned, conflicting = suggested == y, suggested != y
    for name, side in (("aligned", aligned), ("conflicting", conflicting)):
        hits = int((predicted == y)[side].sum())
        expected = stats.binomtest(hits, int(side.sum())).proportion_ci(method="wilson")
        assert number(run, f"{name}_accuracy") == pytest.approx(hits / side.sum())
        assert number(run, f"{name}_accuracy_low") == pytest.approx(expected.low, abs=1e-9)
        assert number(run, f"{name}_accuracy_high") == pytest.approx(expected.high, abs=1e-9)
        assert number(run, f"{name}_examples") == side.sum()
    gap = number(run, "aligned_accuracy") - number(run, "conflicting_accuracy")
    assert number(run, "bias_gap") == pytest.approx(gap)
    assert gap > 0.2  # the data are made so
    assert number(run, "bias_gap_low") < gap < number(run, "bias_gap_high")
    followed = (predicted == suggested)[conflicting].mean()
    assert number(run, "attribute_following") == pytest.approx(followed)
    chance = (1 - number(run, "conflicting_accuracy")) / (CLASSES - 1)
    assert number(run, "chance_following") == pytest.approx(chance)
    assert number(run, "attribute_following_low") > chance
    each = [(aligned & (y == c), conflicting & (y == c)) for c in range(CLASSES)]
    weights = np.array([a.sum() * b.sum() / (a.sum() + b.sum()) for a, b in each])
    gaps = np.array([(predicted == y)[a].mean() - (predicted == y)[b].mean() for a, b in each])
    assert number(run, "within_class_gap") == pytest.approx((weights * gaps).sum() / weights.sum())
    assert number(run, "undecided_examples") == 0


def test_names_in_dictionaries_are_as_good_as_numbers_in_tuples() -> None:
    model = model_of()
    names = ["land", "sea", "säule", "10"]

    def named(batch: Batch) -> dict[str, Any]:
        return {"x": batch[0], "y": batch[1], "group": [names[a] for a in batch[3].tolist()]}

    numbers = audited(model, [TRAIN], [TEST])
    texts = audited(model, [named(TRAIN)], [named(TEST)])
    strings = audited(model, [(*TRAIN[:3], named(TRAIN)["group"])], [(*TEST[:3], named(TEST)["group"])])
    for run in (texts, strings):
        assert list(run.frame(PROBE, "accuracy", "group")["scope"]) == ["10", "land", "sea", "säule"]
        assert number(run, "bias_gap") == number(numbers, "bias_gap")
        assert number(run, "association") == pytest.approx(number(numbers, "association"))


def test_without_groups_it_goes_by_class() -> None:
    model = model_of()
    run = audited(model, [TRAIN[:2]], [TEST[:2]])
    model.eval()
    with torch.no_grad():
        right = (model(TEST[0]).argmax(1) == TEST[1]).double()
    for c in range(CLASSES):
        there = TEST[1] == c
        assert at_scope(run, PROBE, "accuracy", "group")[str(c)] == pytest.approx(float(right[there].mean()))
    assert set(run.frame(PROBE, "accuracy", "group")["by"]) == {"class"}
    assert run.frame(PROBE, "accuracy", "cell").empty
    assert "carry no groups" in why(run, "bias_gap")
    assert np.isnan(number(run, "association"))


def test_values_that_suggest_no_class_are_undecided() -> None:
    train = (TRAIN[0][:6], torch.tensor([0, 0, 1, 1, 0, 2]), torch.arange(6), torch.tensor([0, 0, 1, 1, 2, 2]))
    test = (TEST[0][:5], torch.tensor([0, 1, 1, 2, 3]), torch.arange(5), torch.tensor([0, 0, 1, 2, 7]))
    run = audited(model_of(), [train], [test])
    assert number(run, "undecided_examples") == 2  # 2 is undecided between two classes, 7 is not in training
    assert (number(run, "aligned_examples"), number(run, "conflicting_examples")) == (2, 1)
    assert number(run, "train_conflicting") == 0
    assert number(run, "classes") == 3


def test_one_pass_serves_memorization_too() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model_of()
            self.runs = 0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += 1
            return self.inner(x)

    model = Counting()
    probes = [ls.Memorization(), ls.GroupAccuracy()]
    run = ls.audit(model, train=[TRAIN], test=[TEST], probes=probes, strict=True)
    assert model.runs == 3  # the trial of the task, training data for the one, test data for both
    whole = at_scope(run, "Memorization", "accuracy", "split")["test"]
    sizes, shares = at_scope(run, PROBE, "examples", "group"), at_scope(run, PROBE, "accuracy", "group")
    assert sum(sizes[k] * shares[k] for k in sizes) / 300 == pytest.approx(whole)


def test_no_trace_is_left_on_a_model_in_training() -> None:
    model = model_of().train()
    model[1].eval()  # frozen on purpose
    before = {name: value.clone() for name, value in model.state_dict().items()}
    F.cross_entropy(model(TRAIN[0]), TRAIN[1]).backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    flags, random = [m.training for m in model.modules()], torch.get_rng_state()
    audited(model, [TRAIN], [TEST])
    assert [m.training for m in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))  # type: ignore[arg-type]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_tokens_have_groups_of_texts_and_no_attribute() -> None:
    model = tiny_gpt2()
    ids, mask = tokens(6, 10), torch.ones(6, 10, dtype=torch.int64)
    mask[:2, 5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "group": ["a", "a", "b", "b", "b", "c"]}
    run = audited(model, [batch], [batch])
    assert at_scope(run, PROBE, "positions", "group") == {"a": 8, "b": 27, "c": 9}
    assert at_scope(run, PROBE, "examples", "group") == {"a": 2, "b": 3, "c": 1}
    assert "several targets" in why(run, "bias_gap")
    by_class = audited(model, [{k: v for k, v in batch.items() if k != "group"}],
                       [{k: v for k, v in batch.items() if k != "group"}], max_groups=5)  # fmt: skip
    kept = at_scope(by_class, PROBE, "positions", "group")
    wanted = torch.cat([ids[:2, 1:5].reshape(-1), ids[2:, 1:].reshape(-1)])
    counts = torch.bincount(wanted, minlength=40)
    assert len(kept) == 5
    assert sorted(kept.values()) == sorted(counts.sort(descending=True).values[:5].tolist())
    assert all(kept[name] == counts[int(name)] for name in kept)
    [record] = by_class.records(PROBE)
    assert record.notes["left_out"] == int((counts > 0).sum()) - 5


def test_absent_numbers_have_their_reasons() -> None:
    x, y, ids, attribute = TEST
    errors = torch.randn(300, 1, generator=torch.Generator().manual_seed(0))
    regression = audited(model_of(1), [(x, errors, ids, attribute)], [(x, errors, ids, attribute)])
    assert "float targets" in why(regression, "bias_gap")
    assert set(regression.frame(PROBE, "accuracy", "group")["status"]) == {
        "float targets: there are no classes, only an error"
    }
    assert all(np.isfinite(list(at_scope(regression, PROBE, "loss", "group").values())))
    only_test = ls.audit(model_of(), test=[TEST], probes=[ls.GroupAccuracy()], strict=True)
    assert "pass train=" in why(only_test, "attribute_following")
    assert "train= carry no groups" in why(audited(model_of(), [TRAIN[:2]], [TEST]), "aligned_accuracy")
    aligned = audited(model_of(), [(x, y, ids, y)], [(x, y, ids, y)])
    assert "another class" in why(aligned, "conflicting_accuracy")
    assert "another class" in why(aligned, "bias_gap")
    assert number(aligned, "aligned_examples") == 300
    assert number(aligned, "association") == pytest.approx(1)
    single = audited(model_of(), [(x, y * 0, ids, attribute)], [TEST])
    assert "single class" in why(single, "association")
    assert "single class" in why(single, "chance_following")
    assert "no class has both" in why(single, "within_class_gap")
    some_ignored = y.clone()
    some_ignored[attribute == 2] = -100
    ignored = audited(model_of(), [TRAIN], [(x, some_ignored, ids, attribute)])
    assert at_scope(ignored, PROBE, "examples", "group")["2"] == 0
    frame = rows(ignored, PROBE, "accuracy", "group")
    assert list(frame[frame.scope == "2"].status) == ["no position has a target"]
    broken = model_of()
    with torch.no_grad():
        broken[4].bias[0] = float("nan")
    nan = audited(broken, [TRAIN], [TEST])
    assert number(nan, "conflicting_accuracy") == number(nan, "attribute_following") == 0  # a NaN predicts nothing
    assert set(rows(nan, PROBE, "loss", "group").status) == {"nan"}
    many = audited(model_of(), [TRAIN], [TEST], max_cells=3)
    [record] = many.records(PROBE)
    assert "max_cells=3" in record.notes["cells"]
    assert many.frame(PROBE, "accuracy", "cell").empty


def test_two_classes_from_a_single_logit() -> None:
    model = model_of(1)
    train, test = ((b[0], b[1] % 2, b[2], b[3] % 2) for b in (TRAIN, TEST))
    run = audited(model, [train], [test])
    model.eval()
    with torch.no_grad():
        right = (model(test[0]).squeeze(1) > 0).long() == test[1]
    for a in (0, 1):
        assert at_scope(run, PROBE, "accuracy", "group")[str(a)] == pytest.approx(
            float(right[test[3] == a].double().mean())
        )
    assert number(run, "attribute_following") == pytest.approx(number(run, "chance_following"))


def test_what_is_refused() -> None:
    x, y, ids, attribute = TEST
    with pytest.raises(ValueError, match="have no targets"):
        audited(model_of(), [TRAIN], [(x,)])
    with pytest.raises(ValueError, match="no position of test="):
        audited(model_of(), [TRAIN], [(x, torch.full((300,), -100), ids, attribute)])
    with pytest.raises(ValueError, match="no groups to go by"):
        audited(model_of(1), [TRAIN[:2]], [(x, torch.randn(300, 1))])
    plain = {"x": x, "y": y}
    for wrong in (attribute.double(), attribute[:-1], attribute.reshape(150, 2), [None] * 300, "abc"):
        with pytest.raises(ValueError, match="one whole number or name"):
            audited(model_of(), [plain], [{**plain, "group": wrong}])
    with pytest.raises(ValueError, match="2 batches, 1 came without groups"):
        audited(model_of(), [plain], [plain, {**plain, "group": attribute}])
    with pytest.raises(ValueError, match="2 batches, 1 came without groups"):
        audited(model_of(), [plain], [{**plain, "group": attribute}, plain])
    with pytest.raises(ValueError, match="pass test="):
        ls.watch(model_of(), probes=[ls.GroupAccuracy()], train=[TRAIN])
    with pytest.raises(ValueError, match="max_groups is a whole number"):
        ls.GroupAccuracy(max_groups=0)
    with pytest.raises(TypeError, match="Did you mean 'max_groups'"):
        ls.GroupAccuracy(max_group=3)  # type: ignore[call-arg]
