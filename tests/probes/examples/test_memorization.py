"""The probe against NumPy and scikit-learn on logits computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from probes.reference import at_scope, tiny_gpt2, tokens, values

PROBE = "Memorization"


def data(n: int, seed: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return x, torch.randint(classes, (n,), generator=generator)


def model_of(classes: int = 4) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, classes))


def audited(model: nn.Module, train: object, test: object, **options: object) -> ls.Run:
    return ls.audit(model, train=train, test=test, probes=[ls.Memorization(**options)], strict=True)  # type: ignore[arg-type]


def split(run: ls.Run, name: str) -> dict[str, float]:
    return at_scope(run, PROBE, name, "split")


def test_against_scikit_learn() -> None:
    train, test = data(203, 0), data(150, 1)
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(train[0]), train[1]).backward()
        optimizer.step()
    chunks = list(zip(train[0].split(64), train[1].split(64), strict=True))
    run = audited(model, chunks, [test])
    model.eval()
    p = {}
    for name, (x, y) in (("train", train), ("test", test)):
        with torch.no_grad():
            p[name] = torch.softmax(model(x).double(), 1).numpy()
        assert split(run, "accuracy")[name] == pytest.approx(accuracy_score(y, p[name].argmax(1)))
        assert split(run, "loss")[name] == pytest.approx(log_loss(y, p[name]), rel=1e-5)
        assert split(run, "brier")[name] == pytest.approx(brier_score_loss(y, p[name], scale_by_half=False), rel=1e-5)
        confidence, right = p[name].max(1), p[name].argmax(1) == y.numpy()
        assert split(run, "confidence")[name] == pytest.approx(confidence.mean(), rel=1e-6)
        bins = np.searchsorted(np.quantile(confidence, np.arange(1, 15) / 15), confidence)  # as in scikit-learn
        gaps = [abs((right - confidence)[bins == b].sum()) for b in range(15)]
        assert split(run, "calibration_error")[name] == pytest.approx(sum(gaps) / len(y), rel=1e-4)
        assert split(run, "examples")[name] == split(run, "positions")[name] == len(y)
    gap = split(run, "accuracy")["train"] - split(run, "accuracy")["test"]
    assert gap > 0.2  # labels are random: what was learned is memory
    assert values(run, PROBE, "generalization_gap") == [pytest.approx(gap)]
    losses = {name: -np.log(p[name][np.arange(len(y)), y]) for name, (_, y) in (("train", train), ("test", test))}
    auc = roc_auc_score(np.r_[np.ones(203), np.zeros(150)], -np.r_[losses["train"], losses["test"]])
    assert values(run, PROBE, "proxy_membership_auc") == [pytest.approx(auc, abs=1e-4)]
    assert values(run, PROBE, "loss_gap") == [pytest.approx(losses["test"].mean() - losses["train"].mean(), rel=1e-4)]
    own = p["train"][np.arange(203), train[1]]
    of_class = [p["test"][test[1] == c, c].mean() for c in range(4)]
    excess = own - np.array(of_class)[train[1]]
    arrays = run.arrays(PROBE)
    assert arrays["proxy_excess"] == pytest.approx(excess, abs=1e-5)
    assert arrays["train_gold"] == pytest.approx(own, abs=1e-5)
    assert arrays["train_example"].tolist() == list(range(203))
    assert values(run, PROBE, "proxy_excess_confidence") == [pytest.approx(excess.mean(), abs=1e-5)]


def test_over_a_watched_run_and_its_replay(tmp_path: Path) -> None:
    train, test = data(64, 0), data(64, 1)
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    states = {}
    with ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.Memorization()], train=[train], test=[test],
                  strict=True) as w:  # fmt: skip
        for _ in range(4):
            for _ in range(20):
                optimizer.zero_grad()
                F.cross_entropy(model(train[0]), train[1]).backward()
                optimizer.step()
            w.end_epoch()
            states[w.steps] = {name: value.clone() for name, value in model.state_dict().items()}
    run = ls.open_run(tmp_path / "r")
    gaps = values(run, PROBE, "generalization_gap")
    assert len(gaps) == 4
    assert gaps[-1] > gaps[0]
    again = ls.replay(states, model=model, probes=[ls.Memorization(keep_arrays=False)], train=[train], test=[test],
                      strict=True, progress=False)  # fmt: skip
    assert values(again, PROBE, "generalization_gap") == gaps
    assert all(record.arrays is None for record in again.records(PROBE))


def test_yes_or_no_from_a_single_logit() -> None:
    train, test = data(120, 0, classes=2), data(90, 1, classes=2)
    model = model_of(1)
    run = audited(model, [train], [test])
    model.eval()
    with torch.no_grad():
        p = torch.sigmoid(model(test[0]).double().squeeze(1)).numpy()
    assert split(run, "accuracy")["test"] == pytest.approx(((p > 0.5) == test[1].numpy()).mean())
    expected = brier_score_loss(test[1], p, scale_by_half=False)
    assert split(run, "brier")["test"] == pytest.approx(expected, rel=1e-5)


def test_tokens_count_where_they_count() -> None:
    model = tiny_gpt2()
    ids, mask = tokens(6, 10), torch.ones(6, 10, dtype=torch.int64)
    mask[:2, 5:] = 0
    run = audited(model, [{"input_ids": ids, "attention_mask": mask}], [{"input_ids": ids, "attention_mask": mask}])
    assert split(run, "positions") == {"train": 2 * 4 + 4 * 9, "test": 2 * 4 + 4 * 9}
    assert split(run, "examples")["train"] == 6
    assert values(run, PROBE, "generalization_gap") == [0.0]
    assert values(run, PROBE, "proxy_membership_auc") == [0.5]
    assert set(run.frame(PROBE, "calibration_error")["bins"]) == {4}  # 44 predictions


def test_absent_numbers_have_their_reasons() -> None:
    def why(run: ls.Run, name: str) -> set[str]:
        return set(run.frame(PROBE, name)["status"])

    x, y = data(40, 0)
    regression = audited(model_of(1), [(x, torch.randn(40, 1))], [(x, torch.randn(40, 1))])
    for name in ("accuracy", "confidence", "brier", "calibration_error", "generalization_gap"):
        assert all("float targets" in reason for reason in why(regression, name)), name
    assert set(split(regression, "loss")) == {"train", "test"}
    assert np.isfinite(values(regression, PROBE, "loss_gap")).all()
    few = audited(model_of(), [(x, y)], [(x[:9], y[:9])])
    assert {reason.removeprefix("the other split has ").split(",")[0] for reason in why(few, "calibration_error")} == {
        "fewer than 10 predictions"
    }
    apart = audited(model_of(), [(x, torch.zeros(40).long())], [(x, torch.ones(40).long())])
    assert why(apart, "proxy_excess_confidence") == {"the test data have none of the training data's classes"}
    broken = model_of()
    with torch.no_grad():
        broken[3].bias[0] = float("nan")
    nan = audited(broken, [(x, y)], [(x, y)])
    for name in ("loss", "confidence", "brier", "calibration_error", "proxy_membership_auc", "loss_gap"):
        (reason,) = why(nan, name)
        assert reason.startswith("nan: "), name
        assert reason.endswith("of 40 of 40 positions is not finite, first that of example 0"), name
    assert split(nan, "accuracy") == {"train": 0.0, "test": 0.0}  # a NaN predicts nothing
    with pytest.raises(ValueError, match="test= have no targets"):
        audited(model_of(), [(x, y)], [(x,)])
    with pytest.raises(ValueError, match="pass test="):
        ls.watch(model_of(), probes=[ls.Memorization()], train=[(x, y)])
    with pytest.raises(ValueError, match="bins is a whole number"):
        ls.Memorization(bins=0)


class OneBad(nn.Module):
    """NaN among the logits of the examples whose first input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model_of()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        return torch.where((x[:, :1] > 50) & (torch.arange(4) == 2), torch.nan, found)


@pytest.mark.parametrize("bad", ["training", "test"])
def test_a_single_nan_says_where_it_is(bad: str) -> None:
    splits = {"training": data(40, 0), "test": data(30, 1)}
    splits[bad][0][17, 0] = 100.0
    run = audited(OneBad(), [splits["training"]], [splits["test"]])
    n, own, other = (40, "train", "test") if bad == "training" else (30, "test", "train")
    where = f"of 1 of {n} positions is not finite, first that of example 17"
    for name, what in (("loss", "loss"), ("confidence", "confidence"), ("brier", "score")):
        frame = run.frame(PROBE, name, "split").set_index("scope")
        assert frame.status[own] == f"nan: the {what} {where}"
        assert np.isfinite(frame.value[other])
    of_both = {"loss_gap": "loss", "proxy_membership_auc": "loss", "proxy_excess_confidence": "confidence"}
    for name, what in of_both.items():
        frame = run.frame(PROBE, name, "model")
        assert frame.value.isna().all()
        assert frame.status.item() == f"nan: in the {bad} data the {what} {where}"
