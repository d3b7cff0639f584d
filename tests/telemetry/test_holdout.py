"""Holdout logits: which examples, what is computed of them, and that looking leaves no trace."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from seeds.tiny import token_batches
from telemetry.loops import Net, PairNet, batches, lines, pair_batches, telemetry_in, train

SECTION = "holdout_logits"


def look(folder: Path, model: nn.Module, data: Any, **options: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The holdout section of one collection, and the reasons in the line."""
    with telemetry_in(folder, **options) as telemetry:
        telemetry.set_holdout_data(data)
        telemetry.on_batch_end(model, None, 1, 0)
    (line,) = lines(telemetry)
    return line[SECTION], line["status"]


def softmax_loss(logits: np.ndarray[Any, Any], labels: Any) -> float:
    """Mean cross entropy in float64, from its definition."""
    wide = np.asarray(logits, np.float64)
    shifted = wide - wide.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return float(-log_p[np.arange(len(wide)), np.asarray(labels)].mean())


def in_eval_mode(model: nn.Module, *inputs: Tensor) -> np.ndarray[Any, Any]:
    flags = [module.training for module in model.modules()]
    model.eval()
    with torch.no_grad():
        out: np.ndarray[Any, Any] = model(*inputs).double().numpy()
    for module, flag in zip(model.modules(), flags, strict=True):
        module.training = flag
    return out


def test_fifty_examples_of_fifty_one_batches(tmp_path: Path) -> None:
    """The document's loop hands over 51 batches of 8: the first 50 examples are meant, not 51 batches."""
    model, data = Net(), batches(51)
    found, _ = look(tmp_path / "t", model, data)
    x, y = (torch.cat(parts)[:50] for parts in zip(*data, strict=True))
    expected = in_eval_mode(model, x)
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-5, atol=1e-6)
    assert found["labels"] == y.tolist()
    assert found["predictions"] == expected.argmax(1).tolist()
    assert found["accuracy"] == pytest.approx((expected.argmax(1) == y.numpy()).mean())
    assert found["loss"] == pytest.approx(softmax_loss(expected, y), rel=1e-5)
    assert list(found) == ["logits", "labels", "predictions", "accuracy", "loss"]
    assert 0 < found["accuracy"] < 1


def test_pairs(tmp_path: Path) -> None:
    model, data = PairNet(), pair_batches(4)
    found, _ = look(tmp_path / "t", model, data, holdout_size=20)
    img1, img2, winner = (torch.cat([batch[key] for batch in data])[:20] for key in ("img1", "img2", "winner"))
    expected = in_eval_mode(model, img1, img2)
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-5, atol=1e-6)
    assert found["labels"] == winner.tolist()
    assert found["accuracy"] == pytest.approx((expected.argmax(1) == winner.numpy()).mean())


def test_a_loss_that_may_not_be_the_trained_one_says_which_it_is(tmp_path: Path) -> None:
    model, (x, y) = Net(), batches(1)[0]
    answers = torch.stack([y, 1 - y], 1).float()
    found, status = look(tmp_path / "t", model, [(x, answers)])
    z, wanted = in_eval_mode(model, x), answers.double().numpy()
    assert found["loss"] == pytest.approx(np.mean(np.logaddexp(0, z) - z * wanted), rel=1e-6)
    assert status[f"{SECTION}.loss"] == "binary cross entropy: which loss is trained is not known"
    _, status = look(tmp_path / "classes", model, [(x, y)])
    assert f"{SECTION}.loss" not in status


def test_the_same_examples_and_fresh_numbers_at_every_collection(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = batches(1, size=12)[0]
    expected = []
    with telemetry_in(tmp_path / "t", every=2) as telemetry:
        telemetry.set_holdout_data([(x, y)])
        train(model, optimizer, batches(6), telemetry, after=lambda _: expected.append(in_eval_mode(model, x)))
    for line in lines(telemetry):
        np.testing.assert_allclose(line[SECTION]["logits"], expected[line["global_step"] - 1], rtol=1e-4, atol=1e-6)
        assert line[SECTION]["labels"] == y.tolist()
    assert not np.allclose(expected[1], expected[5], atol=1e-3)


def test_looking_leaves_no_trace(tmp_path: Path) -> None:
    model = Net()
    model.train()
    model.backbone[1].eval()  # frozen on purpose: stays so
    model(batches(1)[0][0]).sum().backward()
    before = (
        {name: value.clone() for name, value in model.state_dict().items()},
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        [module.training for module in model.modules()],
        [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()],  # type: ignore[index]
    )
    look(tmp_path / "t", model, batches(9))
    state, grads, modes, numbers = before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.named_parameters() if p.grad is not None)
    assert [module.training for module in model.modules()] == modes
    assert modes.count(False) == 1
    now = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]
    assert now == numbers


def test_single_logits(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 1))
    x, y = batches(1, size=30)[0]
    found, _ = look(tmp_path / "t", model, [(x, y)])
    z = in_eval_mode(model, x)[:, 0]
    assert found["predictions"] == (z > 0).astype(int).tolist()
    assert found["accuracy"] == pytest.approx(((z > 0) == y.numpy()).mean())
    expected = np.mean(np.log1p(np.exp(z)) - y.numpy() * z)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_regression(tmp_path: Path) -> None:
    model = nn.Linear(6, 1)
    x, _ = batches(1)[0]
    found, status = look(tmp_path / "t", model, [(x, torch.arange(8.0))])
    error = in_eval_mode(model, x)[:, 0] - np.arange(8)
    assert found["loss"] == pytest.approx((error**2).mean(), rel=1e-5)
    assert np.ravel(found["labels"]).tolist() == list(range(8))
    assert (found["predictions"], found["accuracy"]) == (None, None)
    assert "not classes" in status[f"{SECTION}.accuracy"]
    assert "not classes" in status[f"{SECTION}.predictions"]


def test_no_labels(tmp_path: Path) -> None:
    found, status = look(tmp_path / "t", Net(), [(batches(1)[0][0],)])
    assert len(found["logits"]) == len(found["predictions"]) == 8
    for key in ("labels", "accuracy", "loss"):
        assert found[key] is None
        assert "no labels" in status[f"{SECTION}.{key}"]


def test_a_language_model(tmp_path: Path) -> None:
    """Positions that count, shifted by one, padding left out; against a plain loop over them."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=19, n_embd=16, n_layer=2, n_head=2, n_positions=16))
    model.train()
    data = token_batches(3)
    found, _ = look(tmp_path / "t", model, data, holdout_size=4)
    rows, labels = [], []
    for batch in data[:2]:
        model.eval()
        with torch.no_grad():
            logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double().numpy()
        model.train()
        for row in range(2):
            for place in range(batch["input_ids"].shape[1] - 1):
                if batch["attention_mask"][row, place + 1]:
                    rows.append(logits[row, place])
                    labels.append(int(batch["input_ids"][row, place + 1]))
    assert len(rows) == 2 * (5 + 3)
    np.testing.assert_allclose(found["logits"], rows, rtol=1e-4, atol=1e-5)
    assert found["labels"] == labels
    assert found["predictions"] == np.argmax(rows, 1).tolist()
    assert found["loss"] == pytest.approx(softmax_loss(np.array(rows), labels), rel=1e-5)


def test_logits_that_are_not_finite(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    x, y = batches(1)[0]
    x[3] = torch.nan
    found, status = look(tmp_path / "t", model, [(x, y)])
    expected = in_eval_mode(model, x)
    right = expected.argmax(1) == y.numpy()
    right[3] = False  # a row of NaN is no prediction, though its argmax is a class
    assert found["logits"][3] == [None, None]
    assert found["predictions"][3] == -1
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["loss"] is None
    assert status[f"{SECTION}.loss"] == "nan: the loss of 1 of 8 positions is not finite, first that of example 3"
    assert "2 are not finite" in status[f"{SECTION}.logits"]


class TestKindsOfData:
    x, y = (torch.cat(parts) for parts in zip(*batches(8), strict=True))

    def expected(self, model: nn.Module, size: int = 50) -> Any:
        return pytest.approx(in_eval_mode(model, self.x[:size]), rel=1e-4, abs=1e-6)

    def test_a_shuffling_loader_is_read_in_order_and_does_not_move(self, tmp_path: Path) -> None:
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(TensorDataset(self.x, self.y), batch_size=7, shuffle=True, generator=generator)
        before, model = generator.get_state(), Net()
        found, _ = look(tmp_path / "t", model, loader)
        assert np.array(found["logits"]) == self.expected(model)
        assert torch.equal(generator.get_state(), before)

    def test_a_data_set(self, tmp_path: Path) -> None:
        model = Net()
        found, _ = look(tmp_path / "t", model, TensorDataset(self.x, self.y), holdout_size=9)
        assert np.array(found["logits"]) == self.expected(model, 9)

    def test_fewer_examples_than_asked_for(self, tmp_path: Path) -> None:
        found, _ = look(tmp_path / "t", Net(), [(self.x[:3], self.y[:3])])
        assert len(found["logits"]) == 3

    def test_set_after_the_first_batch_and_set_again(self, tmp_path: Path) -> None:
        model = Net()
        with telemetry_in(tmp_path / "t") as telemetry:
            telemetry.on_batch_end(model, None, 1, 0)
            telemetry.set_holdout_data([(self.x[:4], self.y[:4])])
            telemetry.on_batch_end(model, None, 2, 0)
            telemetry.set_holdout_data([(self.x[:6], self.y[:6])])
            telemetry.on_batch_end(model, None, 3, 0)
            telemetry.set_holdout_data(None)
            telemetry.on_batch_end(model, None, 4, 0)
        assert [len(line[SECTION]["logits"]) if SECTION in line else None for line in lines(telemetry)] == [
            None, 4, 6, None
        ]  # fmt: skip

    def test_data_that_cannot_be_read_is_reported_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        model = Net()
        with TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=tmp_path / "t")) as telemetry:
            telemetry.set_holdout_data(iter([1]))
            with pytest.warns(Warning, match="iterator would be used up"):
                telemetry.on_batch_end(model, None, 1, 0)
        (line,) = lines(telemetry)
        assert SECTION not in line
        assert "gradient_norm" in line


def test_more_logits_than_a_line_holds(tmp_path: Path) -> None:
    model = nn.Linear(6, 30_000)
    found, status = look(tmp_path / "t", model, [(torch.randn(50, 6), torch.zeros(50, dtype=torch.int64))])
    assert found["logits"] is None
    assert "1500000 numbers are more than a line holds (1000000)" in status[f"{SECTION}.logits"]
    assert len(found["predictions"]) == 50
    assert found["loss"] > 0
