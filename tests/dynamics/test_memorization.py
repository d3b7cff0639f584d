"""The memorization detector against NumPy and scikit-learn on outputs computed by hand, and on real digits."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from learnscope.core.moment import NotAvailable
from learnscope.dynamics.memorization import MemorizationDetector
from learnscope.dynamics.saved import SavedError
from learnscope.model.data import DataError
from probes.reference import tiny_gpt2, tokens


class Counted(nn.Module):
    """Batch norm and dropout, and how often it was called and in which mode."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(5, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(32, classes)
        self.calls: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((len(x), self.training))
        return self.head(self.body(x))  # type: ignore[no-any-return]


def data(n: int, seed: int, classes: int = 4) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 5, generator=generator), torch.randint(classes, (n,), generator=generator))


def loader(dataset: Any, size: int = 32, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=size, shuffle=True, drop_last=True, **options)


def probabilities(model: nn.Module, dataset: TensorDataset) -> tuple[NDArray[Any], NDArray[Any]]:
    model.eval()
    with torch.no_grad():
        p = torch.softmax(model(dataset.tensors[0]).double(), 1).numpy()
    model.train()
    return p, dataset.tensors[1].numpy()


def fitted(train: TensorDataset, steps: int = 60) -> Counted:
    model = Counted()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(train.tensors[0]), train.tensors[1]).backward()
        optimizer.step()
    return model


def test_every_number_against_scikit_learn() -> None:
    train, test = data(203, 0), data(150, 1)
    model = fitted(train, 150)
    told = MemorizationDetector(4, "cpu").compute_memorization_scores(model, loader(train), loader(test), 7)
    losses = {}
    for split, dataset in (("train", train), ("test", test)):
        p, y = probabilities(model, dataset)
        assert told[f"{split}_accuracy"] == pytest.approx(accuracy_score(y, p.argmax(1)))
        assert told[f"{split}_loss"] == pytest.approx(log_loss(y, p), rel=1e-5)
        assert told[f"{split}_brier"] == pytest.approx(brier_score_loss(y, p, scale_by_half=False), rel=1e-5)
        assert told[f"{split}_confidence"] == pytest.approx(p.max(1).mean(), rel=1e-6)
        assert told[f"{split}_examples"] == told[f"{split}_positions"] == len(y)  # all, though the loader drops some
        losses[split] = -np.log(p[np.arange(len(y)), y])
    assert told["epoch"] == 7
    assert told["generalization_gap"] == pytest.approx(told["train_accuracy"] - told["test_accuracy"])
    assert told["memorization_score"] == told["generalization_gap"] > 0.2
    assert told["loss_gap"] == pytest.approx(losses["test"].mean() - losses["train"].mean(), rel=1e-4)
    auc = roc_auc_score(np.r_[np.ones(203), np.zeros(150)], -np.r_[losses["train"], losses["test"]])
    assert told["proxy_membership_auc"] == pytest.approx(auc, abs=1e-4)
    assert told["reasons"] == {}
    assert f"{told['memorization_score']:.4f}" == f"{told['train_accuracy'] - told['test_accuracy']:.4f}"


def test_one_pass_a_split_in_eval_mode_and_no_trace() -> None:
    class Augmenting(Dataset[Any]):
        def __len__(self) -> int:
            return 70

        def __getitem__(self, index: int) -> Any:
            noise = random.random() + float(np.random.rand()) + torch.rand(5)
            return torch.ones(5) * index + noise, index % 4

    generator = torch.Generator().manual_seed(5)
    train, test = loader(Augmenting(), generator=generator), loader(data(40, 1), 16)
    model = Counted()
    model.body[1].eval()  # frozen on purpose
    model(torch.randn(8, 5)).sum().backward()
    model.calls.clear()
    before = [m.training for m in model.modules()], {k: v.clone() for k, v in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    copies = [None if g is None else g.clone() for g in gradients]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state(), generator.get_state()  # type: ignore[union-attr]
    detector = MemorizationDetector(num_classes=4)
    detector.compute_memorization_scores(model, train, test, 0)
    assert model.calls == [(32, False), (32, False), (6, False), (16, False), (16, False), (8, False)]
    assert [m.training for m in model.modules()] == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in model.state_dict().items())
    for p, grad, copy in zip(model.parameters(), gradients, copies, strict=True):
        assert p.grad is grad
        assert grad is None or torch.equal(grad, copy)  # type: ignore[arg-type]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[:2]  # type: ignore[union-attr]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert torch.equal(generator.get_state(), states[3])
    calls = len(model.calls)
    detector.analyze_memorization_evolution()
    detector.find_label_noise()
    assert len(model.calls) == calls


def always(logits: Tensor) -> nn.Module:
    """A model that says the same whatever the input, so that a story can be told with it."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(logits)

        def forward(self, x: Tensor) -> Tensor:
            return self.table[x[:, 0].long()]

    return Fixed()


def told_by(right_train: int, right_test: int, labels: Tensor) -> nn.Module:
    """Right on the first so many of 20 training and 20 test examples."""
    right = torch.cat([torch.arange(20) < right_train, torch.arange(20) < right_test])
    predicted = torch.where(right, labels, (labels + 1) % 3)
    return always(F.one_hot(predicted, 3).float() * 4)


def story() -> tuple[Any, Any, Tensor]:
    labels = torch.arange(40) % 3
    x = torch.arange(40.0)[:, None]
    return (x[:20], labels[:20]), (x[20:], labels[20:]), labels


def test_evolution_over_checkpoints_in_any_order() -> None:
    train, test, labels = story()
    detector = MemorizationDetector(num_classes=3)
    accuracies = {0: (6, 6), 10: (20, 6), 20: (20, 6), 30: (20, 19), 40: (20, 20), 50: (20, 20)}
    detector.compute_memorization_scores(told_by(0, 20, labels), train, test, 20)  # to be looked at again
    for epoch in (30, 10, 0, 50, 40, 20):
        detector.compute_memorization_scores(told_by(*accuracies[epoch], labels), train, test, epoch)
    told = detector.analyze_memorization_evolution()
    assert told["epochs"] == [0, 10, 20, 30, 40, 50]
    assert told["train_accuracy"] == pytest.approx([a / 20 for a, _ in accuracies.values()])
    assert told["test_accuracy"] == pytest.approx([b / 20 for _, b in accuracies.values()])
    assert told["memorization_score"] == told["generalization_gap"] == pytest.approx([0, 0.7, 0.7, 0.05, 0, 0])
    assert (told["transition_epoch"], told["peak_epoch"]) == (30, 10)
    assert told["peak_gap"] == pytest.approx(0.7)
    assert told["final_gap"] == 0
    assert told["reason"] is None
    assert 0 < told["p_value"] <= 1
    assert told["no_change_points"] is not None
    assert told["grokking"] is None  # a plateau of two evaluations is too short to be one


def test_grokking_has_its_epochs() -> None:
    train, test, labels = story()
    detector = MemorizationDetector()
    for epoch in range(30):
        right = 6 + 14 * (epoch >= 3), 6 + 14 * (epoch >= 20)
        detector.compute_memorization_scores(told_by(*right, labels), train, test, epoch)
    told = detector.analyze_memorization_evolution()
    assert told["transition_epoch"] == 20
    assert told["change_points"] == [3, 20]
    assert told["p_value"] <= 0.01
    assert told["grokking"].pop("p_value") <= 0.01
    assert told["grokking"] == {"memorised_epoch": 3, "generalised_epoch": 20, "delay": 17, "plateau_end": 19}


def test_no_transition_is_a_valid_answer() -> None:
    train, test, labels = story()
    detector = MemorizationDetector()
    for epoch in range(4):
        detector.compute_memorization_scores(told_by(10 + epoch, 10 + epoch, labels), train, test, epoch)
    told = detector.analyze_memorization_evolution()
    assert told["transition_epoch"] is None
    assert told["reason"] == "the gap never reached 0.1: its peak is 0"
    assert told["no_change_points"] == "4 values: from 8 on, a jump can be told from a smooth course"


def test_proxies_of_every_example_at_any_epoch() -> None:
    train, test = data(60, 0), data(50, 1)
    detector, models = MemorizationDetector(), [fitted(train, steps) for steps in (1, 40)]
    for epoch, model in enumerate(models):
        detector.compute_memorization_scores(model, loader(train), loader(test), epoch)
    for epoch, model in ((0, models[0]), (1, models[1]), (None, models[1])):
        frame = detector.memorization_proxies(epoch)
        (p, y), (q, z) = probabilities(model, train), probabilities(model, test)
        gold = p[np.arange(60), y]
        assert frame["example"].tolist() == list(range(60))
        assert frame["label"].tolist() == y.tolist()
        assert frame["predicted"].tolist() == p.argmax(1).tolist()
        assert frame["correct"].tolist() == (p.argmax(1) == y).tolist()
        assert frame["p_gold"].to_numpy() == pytest.approx(gold, abs=1e-6)
        assert frame["loss"].to_numpy() == pytest.approx(-np.log(gold), rel=1e-4)
        known = np.array([q[z == c, c].mean() for c in range(4)])
        assert frame["excess"].to_numpy() == pytest.approx(gold - known[y], abs=1e-6)
        assert "id" not in frame
    with pytest.raises(NotAvailable, match="epoch 9 was not evaluated; there are 0, 1"):
        detector.memorization_proxies(9)


def test_ids_travel_with_the_batch() -> None:
    train, test = data(40, 0), data(40, 1)
    ids = torch.randperm(1000)[:40]
    detector = MemorizationDetector()
    numbered = TensorDataset(*train.tensors, ids)
    detector.compute_memorization_scores(fitted(train), loader(numbered, 16), [tuple(test.tensors)], 0)
    assert detector.memorization_proxies()["id"].tolist() == ids.tolist()
    suspects = detector.find_label_noise(5, true_noise=ids[[3, 7]])
    assert suspects["id"].tolist() == [int(ids[i]) for i in suspects["example"]]
    assert suspects.attrs["noise_score"]["noisy"] == 2
    named = [{"x": x, "y": y, "id": [str(i) for i in range(len(x))]} for x, y in loader(train, 40)]
    other = MemorizationDetector()
    other.compute_memorization_scores(fitted(train), named, named, 0)
    assert "id" not in other.memorization_proxies()


def test_calibration_by_hand() -> None:
    train, test = data(203, 0), data(150, 1)
    model = fitted(train)
    detector = MemorizationDetector()
    scores = detector.compute_memorization_scores(model, loader(train), loader(test), 0)
    for split, dataset in (("train", train), ("test", test)):
        p, y = probabilities(model, dataset)
        confidence, right = p.max(1), p.argmax(1) == y
        told = detector.calibration()[split]
        curve = told["reliability"]
        accuracy, mean = calibration_curve(right, confidence, n_bins=15, strategy="quantile")
        assert curve["n"].sum() == len(y)
        assert curve[["confidence", "accuracy"]].to_numpy() == pytest.approx(np.stack([mean, accuracy], 1), abs=1e-6)
        error = (curve["n"] * (curve["accuracy"] - curve["confidence"]).abs()).sum() / len(y)
        assert told["calibration_error"] == pytest.approx(error) == pytest.approx(scores[f"{split}_calibration_error"])


def test_too_few_predictions_have_no_calibration() -> None:
    detector = MemorizationDetector()
    scores = detector.compute_memorization_scores(Counted(), [data(40, 0)[:]], [data(9, 1)[:]], 0)
    assert math.isnan(scores["test_calibration_error"])
    assert scores["reasons"]["test_calibration_error"] == "fewer than 10 predictions"
    told = detector.calibration()["test"]
    assert told["reason"] == "fewer than 10 predictions"
    assert len(told["reliability"]) == 0


def flipped_digits(seed: int = 0) -> tuple[TensorDataset, TensorDataset, NDArray[np.bool_], NDArray[np.int64]]:
    x, true = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    noisy = np.zeros(1200, bool)
    noisy[generator.choice(1200, 120, replace=False)] = True
    given = true.copy()
    given[:1200][noisy] = (given[:1200][noisy] + generator.integers(1, 10, 120)) % 10
    images, labels = torch.from_numpy((x / 16).astype(np.float32)), torch.from_numpy(given)
    return TensorDataset(images[:1200], labels[:1200]), TensorDataset(images[1200:], labels[1200:]), noisy, true[:1200]


def test_flipped_labels_of_digits_are_found(tmp_path: Path) -> None:
    train, test, noisy, true = flipped_digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    detector = MemorizationDetector(num_classes=10)
    for epoch in range(60):
        for rows in torch.randperm(1200).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(train.tensors[0][rows]), train.tensors[1][rows]).backward()
            optimizer.step()
        if epoch % 5 == 0:
            detector.compute_memorization_scores(model, loader(train, 256), loader(test, 256), epoch)
    suspects = detector.find_label_noise(true_noise=noisy)
    assert len(suspects) == 1200
    assert suspects["score"].is_monotonic_decreasing
    assert suspects["noisy"].tolist() == noisy[suspects["example"].to_numpy()].tolist()
    assert suspects["label"].tolist() == train.tensors[1].numpy()[suspects["example"].to_numpy()].tolist()
    assert roc_auc_score(suspects["noisy"], suspects["score"]) >= 0.95
    told = suspects.attrs["noise_score"]
    assert told["auroc"] == pytest.approx(roc_auc_score(suspects["noisy"], suspects["score"]))
    assert told["precision_at_k"] == pytest.approx(suspects["noisy"].head(120).mean())
    assert told["precision_at_k"] > 0.85
    assert (told["k"], told["n"]) == (120, 1200)
    assert suspects.attrs["evaluations"] == 12
    wrong = suspects[suspects["noisy"]]
    assert (wrong["suggested"] == true[wrong["example"].to_numpy()]).mean() > 0.8, "the model knew better"
    means = np.mean([detector.memorization_proxies(epoch)["loss"] for epoch in range(0, 60, 5)], axis=0)
    assert suspects["score"].to_numpy() == pytest.approx(means[suspects["example"].to_numpy()], rel=1e-6)
    assert detector.find_label_noise(7).equals(suspects.drop(columns="noisy").head(7))
    chosen = detector.find_label_noise(10, true_noise=np.flatnonzero(noisy))
    assert chosen.attrs["noise_score"]["precision_at_k"] == chosen["noisy"].mean()
    paths = detector.plot_memorization(tmp_path)
    names = ["memorization.png", "memorization_calibration.png", "memorization_examples.png"]
    assert [path.name for path in paths] == names
    for path in paths:
        with Image.open(path) as image:
            assert image.width >= 1200
            assert np.asarray(image.convert("L")).std() > 10, "an empty picture"


@pytest.mark.parametrize(("noise", "error", "said"), [
    (np.zeros(39, bool), ValueError, "over 39 examples, and the data have 40"),
    (np.zeros(40, int), TypeError, r"astype\(bool\)"), (np.zeros(40), TypeError, "a mask of True and False"),
    ([3, 99], ValueError, "1 ids that the training data lack, first 99"), (["a"], TypeError, "a mask"),
])  # fmt: skip
def test_noise_that_is_not_understood_is_refused(noise: Any, error: type[Exception], said: str) -> None:
    detector = MemorizationDetector()
    detector.compute_memorization_scores(Counted(), data(40, 0), data(40, 1), 0)
    with pytest.raises(error, match=said):
        detector.noise_score(noise)


def test_other_training_data_have_no_common_suspects(tmp_path: Path) -> None:
    detector, model = MemorizationDetector(), Counted()
    detector.compute_memorization_scores(model, data(40, 0), data(40, 1), 0)
    detector.compute_memorization_scores(model, data(40, 7), data(40, 1), 1)
    with pytest.raises(NotAvailable, match="training data of epoch 1 are not those"):
        detector.find_label_noise()
    assert detector.analyze_memorization_evolution()["epochs"] == [0, 1]
    assert len(detector.plot_memorization(tmp_path)) == 3  # without the suspects
    for bad in (0, True, 1.5):
        with pytest.raises((ValueError, TypeError), match=r"top_k=.*a whole number"):
            detector.find_label_noise(bad)  # type: ignore[arg-type]


def test_what_is_announced_is_checked() -> None:
    model = Counted()
    detector = MemorizationDetector(num_classes=3)
    with pytest.raises(ValueError, match="num_classes=3, but batch 0 of the train data has target 3"):
        detector.compute_memorization_scores(model, data(40, 0), data(40, 1), 0)
    fewer = data(40, 0, classes=3)
    with pytest.raises(ValueError, match="num_classes=3, but the model tells 4 classes apart"):
        detector.compute_memorization_scores(model, fewer, fewer, 0)
    with pytest.raises(ValueError, match="batch 1 of the test data has target -1"):
        bad = [(torch.zeros(2, 5), torch.tensor([0, 1])), (torch.zeros(2, 5), torch.tensor([0, -1]))]
        MemorizationDetector(4).compute_memorization_scores(model, fewer, bad, 0)
    with pytest.raises(ValueError, match="device='meta', but the model is on cpu"):
        MemorizationDetector(4, device="meta").compute_memorization_scores(model, fewer, fewer, 0)
    with pytest.raises(NotAvailable, match="nothing has been evaluated"):
        detector.analyze_memorization_evolution()
    for wrong in (1, 0, -3):
        with pytest.raises(ValueError, match="a whole number from 2"):
            MemorizationDetector(wrong)
    with pytest.raises(TypeError, match="a whole number"):
        MemorizationDetector("10")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Did you mean 'num_classes'"):
        MemorizationDetector(num_class=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("which", [0, 1])
def test_an_empty_loader_is_refused_and_leaves_what_was_there(which: int) -> None:
    detector, model = MemorizationDetector(), Counted()
    full = loader(data(40, 0))
    detector.compute_memorization_scores(model, full, full, 0)
    before = detector.analyze_memorization_evolution()
    given = [full, full]
    given[which] = DataLoader(TensorDataset(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)), batch_size=4)
    with pytest.raises(DataError, match="empty"):
        detector.compute_memorization_scores(model, *given, 1)
    with pytest.raises(ValueError, match="no targets"):
        detector.compute_memorization_scores(model, [torch.zeros(4, 5)], [torch.zeros(4, 5)], 1)
    for epoch in (-1, 1.5, True, "3"):
        with pytest.raises((ValueError, TypeError), match=r"epoch=.*a whole number"):
            detector.compute_memorization_scores(model, full, full, epoch)  # type: ignore[arg-type]
    assert repr(detector.analyze_memorization_evolution()) == repr(before)


def test_a_split_of_one_class_that_the_other_lacks() -> None:
    x = torch.randn(20, 5)
    train, test = (x, torch.zeros(20, dtype=torch.int64)), (x, torch.ones(20, dtype=torch.int64))
    detector = MemorizationDetector()
    told = detector.compute_memorization_scores(Counted(), [train], [test], 0)
    assert math.isnan(told["proxy_excess_confidence"])
    assert told["reasons"]["proxy_excess_confidence"] == "the test data have none of the training data's classes"
    assert detector.memorization_proxies()["excess"].isna().all()
    assert 0 <= told["train_accuracy"] <= 1


def test_float_targets_have_losses_only(tmp_path: Path) -> None:
    x = torch.randn(30, 5)
    pairs = [(x, x.sum(1, keepdim=True))]
    detector = MemorizationDetector()
    told = detector.compute_memorization_scores(nn.Linear(5, 1), pairs, pairs, 0)
    assert math.isnan(told["memorization_score"])
    assert "float targets" in told["reasons"]["generalization_gap"]
    assert told["loss_gap"] == 0
    analysis = detector.analyze_memorization_evolution()
    assert analysis["transition_epoch"] is None
    assert math.isnan(analysis["peak_gap"])
    assert analysis["reason"] == "no evaluation has a generalization gap"
    assert list(detector.memorization_proxies()) == ["example", "loss"]
    with pytest.raises(NotAvailable, match="not classes"):
        detector.find_label_noise()
    assert [path.name for path in detector.plot_memorization(tmp_path)] == ["memorization.png"]


def test_a_causal_language_model() -> None:
    torch.manual_seed(0)
    model = tiny_gpt2()
    ids, mask = tokens(6, 10), torch.ones(6, 10, dtype=torch.int64)
    mask[:2, 5:] = 0
    batches = [{"input_ids": ids[i : i + 3], "attention_mask": mask[i : i + 3]} for i in (0, 3)]
    detector = MemorizationDetector(num_classes=40)
    told = detector.compute_memorization_scores(model, batches, batches, 0)
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits.double()
    counted = (mask[:, 1:] & mask[:, :-1]).bool()
    p = torch.softmax(logits[:, :-1], -1)[counted]
    gold = ids[:, 1:][counted]
    own = p[torch.arange(len(gold)), gold]
    assert told["train_positions"] == len(gold)
    assert told["train_examples"] == 6
    assert told["train_accuracy"] == pytest.approx(float((p.argmax(1) == gold).double().mean()))
    assert told["train_loss"] == pytest.approx(float(-own.log().mean()), rel=1e-5)
    frame = detector.memorization_proxies()
    assert frame["label"].tolist() == gold.tolist()
    assert frame["p_gold"].to_numpy() == pytest.approx(own.numpy(), abs=1e-6)
    assert frame["example"].tolist() == torch.arange(6)[:, None].expand(6, 9)[counted].tolist()
    suspects = detector.find_label_noise(3, true_noise=np.arange(6) == 2)
    assert suspects["noisy"].tolist() == (suspects["example"] == 2).tolist()


def test_a_sequence_classifier() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=40, num_labels=3, **sizes))
    ids, labels = tokens(8, 6), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    batches = [{"input_ids": ids[i : i + 4], "labels": labels[i : i + 4]} for i in (0, 4)]
    told = MemorizationDetector(num_classes=3).compute_memorization_scores(model, batches, batches, 0)
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    assert told["train_accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert told["test_loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    assert told["memorization_score"] == 0


def test_saved_and_loaded_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    train, test = data(60, 0), data(50, 1)
    whole, half = MemorizationDetector(4, "cpu"), MemorizationDetector(4, "cpu", run=tmp_path / "run")
    models = [fitted(train, steps) for steps in (1, 10, 30)]
    for epoch, model in enumerate(models):
        whole.compute_memorization_scores(model, train, test, epoch)
        if epoch < 2:
            half.compute_memorization_scores(model, train, test, epoch)
    again = MemorizationDetector.load(half.save(tmp_path / "detector.pkl"))
    assert (again.num_classes, again.device) == (4, "cpu")
    again.compute_memorization_scores(models[2], train, test, 2)
    assert repr(again.analyze_memorization_evolution()) == repr(whole.analyze_memorization_evolution())
    assert again.find_label_noise().equals(whole.find_label_noise())
    assert again.memorization_proxies(0).equals(whole.memorization_proxies(0))
    for split in ("train", "test"):
        assert again.calibration(1)[split]["reliability"].equals(whole.calibration(1)[split]["reliability"])
    from learnscope.dynamics.gradient_flow import GradientFlowAnalyzer

    with pytest.raises(SavedError, match=r"use MemorizationDetector.load"):
        GradientFlowAnalyzer.load(tmp_path / "detector.pkl", models[0])


def test_another_model_with_the_same_names() -> None:
    train, test = data(60, 0), data(50, 1)
    detector = MemorizationDetector()
    first, second = fitted(train, 1), fitted(train, 60)
    numbers = [
        detector.compute_memorization_scores(m, train, test, e)["train_loss"] for e, m in enumerate((first, second))
    ]
    for model, number in zip((first, second), numbers, strict=True):
        p, y = probabilities(model, train)
        assert number == pytest.approx(log_loss(y, p), rel=1e-5)
