"""Attributions of a transition against one backward an example, in plain autograd and float64."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from rich.console import Console
from scipy.stats import fisher_exact
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import learnscope as ls
from learnscope import progress
from learnscope.core.moment import NotAvailable
from learnscope.dynamics.transitions import PhaseTransitionAttributor
from learnscope.findings.examples.critical import Attributions, CriticalExamples, analyze, critical_examples, enrichment
from learnscope.model.data import DataError
from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.report.examples.transitions import draw_losses, draw_scores, draw_shares
from model.examples.one_by_one import ConvNet, one_by_one, state, tiny
from probes.reference import mlp

Matrix = np.ndarray[Any, Any]


def moved(model: nn.Module, by: float = 0.3, seed: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p += by * torch.randn_like(p)
    return other


def labelled(n: int, seed: int = 1) -> TensorDataset:
    torch.manual_seed(seed)
    return TensorDataset(torch.randn(n, 6, dtype=torch.float64), torch.arange(n) % 3)


def reference(before: nn.Module, after: nn.Module, losses: Callable[[nn.Module], list[Tensor]]) -> dict[str, Matrix]:
    """By hand: two backward passes an example."""
    sides = []
    for model in (before, after):
        each = losses(model.eval())
        sides.append((one_by_one(model, each), np.array([loss.item() for loss in each])))
    (one, loss_before), (two, loss_after) = sides
    cosine = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    return {
        "scores": cosine * (loss_before - loss_after), "cosine": cosine, "loss_before": loss_before,
        "loss_after": loss_after,
    }  # fmt: skip


def of_classes(data: TensorDataset) -> Callable[[nn.Module], list[Tensor]]:
    return lambda model: [F.cross_entropy(model(x[None]), y[None]) for x, y in data]


def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    before = mlp(6, 5, 3).double()
    return before, moved(before)


def test_scores_losses_and_critical_examples_of_a_data_set() -> None:
    before, after = pair()
    data, test = labelled(90), labelled(9)
    before.train()
    states = state(before), state(after)
    attributor = PhaseTransitionAttributor(model_checkpoints={10: before, 40: after}, train_data=data, test_data=test)
    attributions = attributor.compute_transition_attributions(pre_transition_epoch=10, post_transition_epoch=40)
    assert (state(before), state(after)) == states
    expected = reference(copy.deepcopy(before), copy.deepcopy(after), of_classes(data))
    for name, column in expected.items():
        np.testing.assert_allclose(getattr(attributions, name), column, atol=1e-10)
    assert dict(attributions) == dict(enumerate(attributions.scores.tolist()))
    assert attributions.labels is not None
    assert attributions.labels.tolist() == [i % 3 for i in range(90)]

    critical = attributor.find_critical_examples(attributions, top_k=20)
    order = np.argsort(-expected["scores"], kind="stable")[:20]
    assert list(critical) == order.tolist()
    assert critical.scores == pytest.approx(expected["scores"][order])
    analysis = attributor.analyze_critical_examples(critical)
    counts = {label: int(sum(i % 3 == label for i in order)) for label in range(3)}
    assert analysis["label_distribution"] == {label: n for label, n in counts.items() if n}
    assert analysis["all_label_distribution"] == {0: 30, 1: 30, 2: 30}
    drop = expected["loss_before"] - expected["loss_after"]
    assert analysis["mean_loss_before"] == pytest.approx(expected["loss_before"][order].mean())
    assert analysis["mean_loss_after"] == pytest.approx(expected["loss_after"][order].mean())
    assert analysis["mean_cosine"] == pytest.approx(expected["cosine"][order].mean())
    assert analysis["all_mean_loss_before"] == pytest.approx(expected["loss_before"].mean())
    assert drop.sum() < 0 < drop[order].sum()  # random weights are worse for most examples
    assert analysis["share_of_loss_drop"] is None
    assert analysis["reasons"]["share_of_loss_drop"] == "the examples together lost no loss"
    assert analysis["group_distribution"] is None
    assert analysis["reasons"]["group_distribution"] == "the batches carry no groups"
    assert attributor.analyze_critical_examples(list(critical)) == analysis


def test_a_batch_norm_model_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    before = ConvNet().double().train()
    before.norm.eval()
    after = moved(before)
    data = TensorDataset(torch.randn(12, 1, 4, 4, dtype=torch.float64), torch.randint(4, (12,)))
    F.cross_entropy(before(data.tensors[0]), data.tensors[1]).backward()
    states = state(before), state(after)
    attributor = PhaseTransitionAttributor({0: before, 1: after}, data, data)
    found = attributor.compute_transition_attributions(0, 1)
    attributor.compute_transition_attributions(0, 1, method="tracin", learning_rates=0.1)
    attributor.compute_transition_attributions(0, 1, method="trak", dims=4)
    assert (state(before), state(after)) == states
    expected = reference(copy.deepcopy(before), copy.deepcopy(after), of_classes(data))
    np.testing.assert_allclose(found.scores, expected["scores"], atol=1e-10)


LENGTHS = [6, 3, 4, 6, 2]


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "bert"])
def test_real_architectures_with_padding(family: str) -> None:
    before = tiny(family).double()
    after = moved(before, 0.05)
    torch.manual_seed(2)
    ids = torch.randint(3, 23, (5, 6))
    mask = (torch.arange(6) < torch.tensor(LENGTHS)[:, None]).long()
    labels = torch.arange(5) % 3 if family == "bert" else torch.where(mask.bool(), ids, -100)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    halves = [{name: value[rows] for name, value in batch.items()} for rows in (slice(2), slice(2, 5))]
    attributor = PhaseTransitionAttributor({3: before, 7: after}, halves)
    found = attributor.compute_transition_attributions(3, 7)

    def losses(model: nn.Module) -> list[Tensor]:
        """Without padding, one by one."""
        out = [model(input_ids=ids[i : i + 1, :n]).logits for i, n in enumerate(LENGTHS)]
        if family == "bert":
            return [F.cross_entropy(logits, labels[i : i + 1]) for i, logits in enumerate(out)]
        return [
            F.cross_entropy(logits[0, :-1], ids[i, 1:n]) for i, (n, logits) in enumerate(zip(LENGTHS, out, strict=True))
        ]

    expected = reference(before, after, losses)
    # the norms of Llama and Qwen2 compute in float32, whatever the weights are
    tolerance = 1e-12 if family in ("gpt2", "bert") else 1e-7
    for name, column in expected.items():
        np.testing.assert_allclose(getattr(found, name), column, atol=tolerance)
    analysis = attributor.analyze_critical_examples(attributor.find_critical_examples(found, top_k=2))
    if family == "bert":
        assert sum(analysis["label_distribution"].values()) == 2
    else:
        assert analysis["label_distribution"] is None
        assert "several targets" in analysis["reasons"]["label_distribution"]


def test_tracin_and_trak_under_their_own_names() -> None:
    before, after = pair()
    middle = moved(before, 0.1)
    train, test = labelled(40), labelled(7, seed=3)
    attributor = PhaseTransitionAttributor({0: moved(before, 2.0), 10: before, 20: middle, 40: after}, train, test)
    rates = {10: 0.1, 20: 0.3, 40: 0.05}
    found = attributor.compute_transition_attributions(10, 40, method="tracin", learning_rates=rates)
    rows = {
        epoch: (one_by_one(model, of_classes(train)(model)), one_by_one(model, of_classes(test)(model)))
        for epoch, model in ((10, before), (20, middle), (40, after))
    }
    expected = sum(rates[epoch] * a @ b.mean(0) for epoch, (a, b) in rows.items())
    np.testing.assert_allclose(found.scores, expected, atol=1e-10)
    assert found.method == "tracin"
    alike = attributor.compute_transition_attributions(10, 40, method="tracin", learning_rates=0.1)
    np.testing.assert_allclose(alike.scores, sum(0.1 * a @ b.mean(0) for a, b in rows.values()), atol=1e-10)
    analysis = attributor.analyze_critical_examples(attributor.find_critical_examples(found, 10))
    assert analysis["mean_loss_before"] is None
    assert analysis["reasons"]["mean_loss_before"] == "tracin compares no loss before of an example"

    from learnscope.model.examples.trak import trak

    projected = attributor.compute_transition_attributions(10, 40, method="trak", dims=8, seed=2, ridge=0.1)
    matrix = trak([before, middle, after], None, train, test, dims=8, seed=2, ridge=0.1).scores
    np.testing.assert_allclose(projected.scores, matrix.mean(1).numpy(), atol=1e-12)
    with pytest.raises(ValueError, match=r"lower dims"):
        attributor.compute_transition_attributions(10, 40, method="trak")  # 512 dimensions of 40 examples


def test_state_dicts_and_files_stand_for_models(tmp_path: Path) -> None:
    before, after = pair()
    data = labelled(11)
    expected = PhaseTransitionAttributor({1: before, 2: after}, data).compute_transition_attributions(1, 2)
    torch.save(after.state_dict(), tmp_path / "after.pt")
    vessel = moved(before, 4.0)
    untouched = state(vessel)
    kept = {1: before.state_dict(), 2: tmp_path / "after.pt"}
    found = PhaseTransitionAttributor(kept, data, model=vessel).compute_transition_attributions(1, 2)
    assert found.scores.tolist() == expected.scores.tolist()
    assert state(vessel) == untouched
    other = {1: before.state_dict(), 2: mlp(6, 4, 3).double().state_dict()}
    with pytest.raises(CheckpointError, match="checkpoint of epoch 2 does not fit"):
        PhaseTransitionAttributor(other, data, model=vessel).compute_transition_attributions(1, 2)
    with pytest.raises(ValueError, match="two architectures"):
        PhaseTransitionAttributor({1: before, 2: mlp(6, 4, 3).double()}, data).compute_transition_attributions(1, 2)


class Augmented(Dataset[Any]):
    """Draws its inputs anew each time, and notes what is read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 150

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read.append(index)
        return torch.randn(6, dtype=torch.float64), index % 3


def test_the_data_set_is_read_in_order_and_once() -> None:
    before, after = pair()
    source = Augmented()
    loader = DataLoader(source, batch_size=32, shuffle=True)
    attributor = PhaseTransitionAttributor({1: before, 2: after}, loader)
    source.read.clear()
    random = torch.get_rng_state()
    found = attributor.compute_transition_attributions(1, 2)
    assert source.read == list(range(150))
    assert torch.equal(torch.get_rng_state(), random)
    assert list(found) == list(range(150))


def test_ids_are_those_that_batches_carry() -> None:
    before, after = pair()
    data = labelled(30)
    plain = PhaseTransitionAttributor({1: before, 2: after}, data).compute_transition_attributions(1, 2)
    indexed = torch.utils.data.Subset(ls.IndexedDataset(data, start=100), [7, 3, 20])
    found = PhaseTransitionAttributor({1: before, 2: after}, indexed).compute_transition_attributions(1, 2)
    assert list(found) == [107, 103, 120]
    assert found[103] == pytest.approx(plain[3], abs=1e-12)
    with pytest.raises(KeyError):
        found[3]
    x, y = data.tensors
    twice = [(x[:2], y[:2], torch.tensor([4, 9])), (x[2:4], y[2:4], torch.tensor([9, 5]))]
    with pytest.raises(DataError, match="example id 9 comes 2 times"):
        PhaseTransitionAttributor({1: before, 2: after}, twice).compute_transition_attributions(1, 2)
    with pytest.raises(DataError, match="1 of 2 batches carry ids"):
        PhaseTransitionAttributor({1: before, 2: after}, [twice[0], (x[2:4], y[2:4])]).compute_transition_attributions(
            1, 2
        )


def test_groups_are_analyzed_where_batches_carry_them() -> None:
    before, after = pair()
    x, y = labelled(40).tensors
    batch = {"x": x, "y": y, "group": ["left", "right"] * 20}
    attributor = PhaseTransitionAttributor({1: before, 2: after}, [batch])
    found = attributor.compute_transition_attributions(1, 2)
    critical = attributor.find_critical_examples(found, 9)
    analysis = attributor.analyze_critical_examples(critical)
    odd = sum(i % 2 for i in critical)
    assert analysis["group_distribution"].get("right", 0) == odd
    assert analysis["all_group_distribution"] == {"left": 20, "right": 20}
    assert analysis["group_enrichment"]["left"]["critical"] == 9 - odd


def test_examples_without_a_score_are_never_critical() -> None:
    before, after = pair()
    x, y = (t.clone() for t in labelled(12).tensors)
    y[3], x[5] = -100, torch.inf
    attributor = PhaseTransitionAttributor({1: before, 2: after}, [(x, y)], [(x[:3], y[:3])])
    found = attributor.compute_transition_attributions(1, 2)
    assert {i for i, score in found.items() if np.isnan(score)} == {3, 5} == set(found.reasons)
    assert "no target that counts" in found.reasons[3]
    critical = attributor.find_critical_examples(found, top_k=1000)
    assert len(critical) == 10
    assert not {3, 5} & set(critical)
    analysis = attributor.analyze_critical_examples(critical)
    assert (analysis["examples"], analysis["of"], analysis["with_score"]) == (10, 12, 10)
    assert sum(analysis["all_label_distribution"].values()) == 11  # one has no label
    traced = attributor.compute_transition_attributions(1, 2, method="tracin", learning_rates=1.0)
    assert set(traced.reasons) >= {3}
    assert np.isnan(traced[3])
    unknown = PhaseTransitionAttributor({1: before, 2: after}, [(x[:3], y[:3])], [(x[2:4], y[2:4])])
    with pytest.raises(ValueError, match="test example 1 has"):
        unknown.compute_transition_attributions(1, 2, method="tracin", learning_rates=1.0)


def made(scores: list[float], labels: list[int] | None = None, **more: Any) -> Attributions:
    n = len(scores)
    return Attributions(
        method="transition", before=1, after=2, ids=more.pop("ids", np.arange(n)), scores=np.array(scores, dtype=float),
        labels=None if labels is None else np.array(labels), **more,
    )  # fmt: skip


def test_ties_are_in_the_order_of_ids() -> None:
    found = made([1.0, 2.0, np.nan, 2.0, 1.0, np.inf], ids=np.array([50, 40, 30, 20, 10, 5]))
    assert critical_examples(found, 100).ids == [20, 40, 10, 50]
    assert critical_examples(found, 3).ids == [20, 40, 10]
    assert critical_examples(found, 0).ids == []
    assert critical_examples(found, 3)[0] == 20
    assert critical_examples(found, 3)[1:] == [40, 10]
    nothing = analyze(critical_examples(made([1.0, 0.5], [0, 1]), 0))
    assert nothing["label_distribution"] == {}
    assert nothing["label_enrichment"] == {}
    assert nothing["share_of_loss_drop"] is None


def test_enrichment_against_fishers_exact_test() -> None:
    labels = [0] * 50 + [1] * 30 + [2] * 20 + [7] * 4
    scores = [float(i) for i in range(100)] + [np.nan] * 4  # class 2 has the highest, class 7 none
    found = made(scores, labels)
    critical = critical_examples(found, 25)
    rows = enrichment(critical, labels)
    assert list(rows) == [0, 1, 2]
    for label, (inside, size) in {0: (0, 50), 1: (5, 30), 2: (20, 20)}.items():
        row = rows[label]
        assert (row["critical"], row["all"]) == (inside, size)
        assert row["ratio"] == pytest.approx((inside / 25) / (size / 100))
        table = [[inside, 25 - inside], [size - inside, 75 - size + inside]]
        tails = [fisher_exact(table, side).pvalue for side in ("less", "greater")]
        assert row["p_value"] == pytest.approx(min(1, 2 * min(tails)), rel=1e-9)
        low, high = row["share_interval"]
        assert low - 1e-12 <= inside / 25 <= high
        assert high - low > 0.1
    p = sorted(row["p_value"] for row in rows.values())
    adjusted = sorted(row["p_adjusted"] for row in rows.values())
    assert adjusted[0] == pytest.approx(min(3 * p[0], 1.5 * p[1], p[2]))
    assert adjusted[-1] == pytest.approx(p[-1])
    everything = enrichment(critical_examples(found, 104), labels)
    assert {row["p_value"] for row in everything.values()} == {1.0}
    assert {row["ratio"] for row in everything.values()} == {1.0}


def test_the_share_of_the_loss_drop() -> None:
    before, after = np.array([3.0, 2.0, 2.0, np.nan]), np.array([1.0, 1.5, 2.5, 1.0])
    found = made([5.0, 4.0, 3.0, np.nan], [0, 0, 1, 1], loss_before=before, loss_after=after, cosine=np.ones(4))
    analysis = analyze(critical_examples(found, 1))
    assert analysis["share_of_loss_drop"] == pytest.approx(2.0 / 2.0)  # the others gained as much as they lost
    assert analysis["mean_loss_after"] == 1.0
    assert analysis["all_mean_loss_before"] == pytest.approx(7 / 3)
    back = made([5.0, 4.0], loss_before=after[:2], loss_after=before[:2])
    assert analyze(critical_examples(back, 1))["reasons"]["share_of_loss_drop"] == "the examples together lost no loss"


def test_half_precision_and_one_class() -> None:
    torch.manual_seed(0)
    before = mlp(6, 5, 3).bfloat16()
    after = moved(before)
    data = TensorDataset(torch.randn(20, 6).bfloat16(), torch.ones(20, dtype=torch.int64))
    attributor = PhaseTransitionAttributor({1: before, 2: after}, data)
    found = attributor.compute_transition_attributions(1, 2)
    assert np.isfinite(found.scores).all()
    wide = TensorDataset(data.tensors[0].double(), data.tensors[1])
    expected = reference(copy.deepcopy(before).double(), copy.deepcopy(after).double(), of_classes(wide))
    np.testing.assert_allclose(found.cosine, expected["cosine"], atol=0.05)
    analysis = attributor.analyze_critical_examples(attributor.find_critical_examples(found, 5))
    assert analysis["label_distribution"] == {1: 5}
    assert analysis["label_enrichment"][1]["p_value"] == 1.0


def test_refusals_name_what_is_there(tmp_path: Path) -> None:
    before, after = pair()
    data = labelled(8)
    attributor = PhaseTransitionAttributor({10: before, 40: after}, data)
    with pytest.raises(NotAvailable, match="compute_transition_attributions first"):
        attributor.plot_attributions(tmp_path)
    with pytest.raises(ValueError, match=r"pre_transition_epoch 20 is not known.*10, 40"):
        attributor.compute_transition_attributions(20, 40)
    with pytest.raises(ValueError, match="40 is not before post_transition_epoch=10"):
        attributor.compute_transition_attributions(40, 10)
    with pytest.raises(ValueError, match=r"method 'tracn' is not known. Did you mean 'tracin'"):
        attributor.compute_transition_attributions(10, 40, method="tracn")
    with pytest.raises(ValueError, match="give learning_rates"):
        attributor.compute_transition_attributions(10, 40, method="tracin")
    with pytest.raises(ValueError, match="has none for epoch 40"):
        attributor.compute_transition_attributions(10, 40, method="tracin", learning_rates={10: 0.1})
    with pytest.raises(ValueError, match="give test_data="):
        attributor.compute_transition_attributions(10, 40, method="trak")
    with pytest.raises(ValueError, match="give model="):
        PhaseTransitionAttributor({1: before.state_dict()}, data)
    with pytest.raises(TypeError, match="dictionary from epochs to models"):
        PhaseTransitionAttributor([before, after], data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="train_data is None"):
        PhaseTransitionAttributor({1: before}, None)
    with pytest.raises(TypeError, match="Did you mean 'test_data'"):
        PhaseTransitionAttributor({1: before}, data, tests_data=data)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="the same weights in one place"):
        PhaseTransitionAttributor({1: before, 2: before}, data).compute_transition_attributions(1, 2)
    unlabelled = PhaseTransitionAttributor({1: before, 2: after}, [(data.tensors[0],)])
    with pytest.raises(ValueError, match="needs targets"):
        unlabelled.compute_transition_attributions(1, 2)
    found = attributor.compute_transition_attributions(10, 40)
    with pytest.raises(ValueError, match=r"top_k=-1.*from 0"):
        attributor.find_critical_examples(found, top_k=-1)
    with pytest.raises(TypeError, match="not a dict"):
        attributor.find_critical_examples({1: 0.5})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no example 99"):
        attributor.analyze_critical_examples([3, 99])


def test_figures_show_the_scores_the_losses_and_the_labels(tmp_path: Path) -> None:
    before, after = pair()
    attributor = PhaseTransitionAttributor({10: before, 40: after}, labelled(60), labelled(5))
    found = attributor.compute_transition_attributions(10, 40)
    names = ["attribution_scores.png", "attribution_losses.png", "attribution_labels.png"]
    assert attributor.plot_attributions(save_dir=tmp_path / "a", top_k=12) == [tmp_path / "a" / name for name in names]
    assert all((tmp_path / "a" / name).stat().st_size > 5000 for name in names)
    critical = critical_examples(found, 12)
    [axes] = draw_scores(found, critical).axes
    assert sum(patch.get_height() for patch in axes.patches[:60]) == 60
    assert found.loss_before is not None
    assert found.loss_after is not None
    points = draw_losses(found, found.loss_before, found.loss_after).axes[0].collections[0]
    drawn = sorted(map(tuple, np.round(points.get_offsets(), 9).tolist()))
    assert drawn == sorted(
        zip(np.round(found.loss_before, 9).tolist(), np.round(found.loss_after, 9).tolist(), strict=True)
    )
    traced = attributor.compute_transition_attributions(10, 40, method="tracin", learning_rates=0.1)
    paths = attributor.plot_attributions(tmp_path / "b", traced)
    assert [path.name for path in paths] == [names[0], names[2]]
    nothing = made([np.nan, np.nan])
    assert [path.name for path in attributor.plot_attributions(tmp_path / "c", nothing)] == [names[0]]


def test_labels_that_are_not_there_by_chance_stand_out() -> None:
    labels = [0] * 80 + [1] * 20
    found = made([float(i) for i in range(100)], labels)
    critical = critical_examples(found, 15)
    rows = enrichment(critical, labels)
    [axes] = draw_shares(found, critical, rows, "label").axes
    assert [bar.get_width() for bar in axes.patches] == [0.8, 0.2]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["label 0", "label 1"]
    [marked] = [line for line in axes.get_lines() if to_hex(line.get_color()).upper() == "#D55E00"]
    assert sorted(map(tuple, marked.get_xydata().tolist())) == [(0.0, 0.0), (1.0, 1.0)]


def test_progress_is_shown_on_a_terminal_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal shows no bar

    def shown(terminal: bool, patience: float, show: bool = True) -> str:
        monkeypatch.setattr(progress, "PATIENCE", patience)
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=80)
        with progress.progress_bar("transition scores", show=show, console=console) as update:
            update(50, 100)
        return out.getvalue()

    assert "transition scores" in shown(terminal=True, patience=0.0)
    assert shown(terminal=True, patience=60.0) == ""
    assert "transition scores" not in shown(terminal=False, patience=0.0)
    assert "transition scores" not in shown(terminal=True, patience=0.0, show=False)


def test_critical_examples_are_a_sequence_of_ids() -> None:
    critical = critical_examples(made([3.0, 1.0, 2.0], ids=np.array([11, 12, 13])), 2)
    assert isinstance(critical, CriticalExamples)
    assert (list(critical), len(critical), 13 in critical, critical.scores) == ([11, 13], 2, True, [3.0, 2.0])
