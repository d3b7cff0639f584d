"""The probes of robustness: their rows, against the numbers of plain loops."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.posttrain.session import AuditSession
from learnscope.probes.robustness.attacks import Attacks
from learnscope.probes.robustness.bit_robustness import BitRobustness
from learnscope.probes.robustness.input_perturbation import InputPerturbation
from learnscope.probes.robustness.noise_robustness import NoiseRobustness
from learnscope.probes.robustness.shared import means
from learnscope.record import Record, Row
from learnscope.tensor.bits.quantize import fake_quantize
from model.robustness.attacked import digits_classifier, language_models, plain_pgd, token_batch


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    return digits_classifier()


def rows(record: Record, name: str, scope: str = "model", **labels: Any) -> list[Row]:
    return [
        row
        for row in record.rows()
        if row.name == name and row.scope == scope and all(row.labels[key] == value for key, value in labels.items())
    ]


def number(record: Record, name: str, scope: str = "model", **labels: Any) -> float:
    (row,) = rows(record, name, scope, **labels)
    assert row.value is not None, row.status
    return float(row.value)


def test_attacks_on_digits(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    probe = Attacks(epsilons=(0.05, 0.15), unit="absolute", examples=40, steps=4, restarts=1, clip=(0, 1))
    # two batches: the second is cut, and what they gave is put together
    record = AuditSession(model).measure(probe, [(x[:30], y[:30]), (x[30:], y[30:])])
    clean = (model(x).argmax(1) == y).double().mean().item()
    assert number(record, "accuracy", "clean") == pytest.approx(clean)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), y, reduction="sum"), [leaf])
    attacked = (x + 0.15 * gradient.sign()).clamp(0, 1)
    with torch.no_grad():
        logits, own = model(attacked), model(x)
    at = {"norm": "linf", "epsilon": 0.15, "unit": "absolute", "steps": 1}
    share = (logits.argmax(1) == y).double().mean().item()
    assert number(record, "accuracy", "fgsm", **at) == pytest.approx(share)
    assert number(record, "loss", "fgsm", **at) == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-10)
    kl = F.kl_div(logits.log_softmax(1), own.log_softmax(1), log_target=True, reduction="batchmean").item()
    assert number(record, "kl", "fgsm", **at) == pytest.approx(kl, rel=1e-10)
    low, high = (number(record, f"accuracy_{end}", "fgsm", **at) for end in ("low", "high"))
    wilson = stats.binomtest(round(share * 40), 40).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((wilson.low, wilson.high))
    pgd = number(record, "accuracy", "pgd", epsilon=0.15, steps=4)
    assert pgd <= share < clean - 0.3
    gap = number(record, "robustness_gap")
    assert gap == pytest.approx(clean - pgd)
    assert number(record, "robustness_gap_low") < gap < number(record, "robustness_gap_high")
    for flag in ("pgd_at_least_fgsm", "monotone_in_epsilon", "monotone_in_steps", "random_below_attack"):
        assert number(record, flag) == 1, flag
    assert number(record, "accuracy", "random", epsilon=0.05) > number(record, "accuracy", "pgd", epsilon=0.05)
    norms = x.flatten(1).norm(dim=1)
    assert number(record, "epsilon_relative", "pgd", epsilon=0.05) == pytest.approx((0.05 * 8 / norms).mean().item())
    (row,) = rows(record, "epsilon_token", "pgd", epsilon=0.05)
    assert (row.value, row.status) == (None, "continuous inputs have no tokens")
    (row,) = rows(record, "zero_gradient_share", "random", epsilon=0.05)
    assert (row.value, row.status) == (None, "no gradient is taken")
    assert record.notes["target"] == "inputs"
    assert record.notes["examples"] == record.notes["positions"] == 40


def test_means_are_over_positions_not_over_examples() -> None:
    sums = {"positions": [1, 5], "loss": [3.0, 0.0], "correct": [1, 2], "kl": [2.0, 4.0]}
    assert means(sums) == {"accuracy": 0.5, "loss": 0.5, "kl": 1.0}


class Saturated(nn.Module):
    """Right by a wide margin in a flat place: float32 has no gradient where tanh is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.steepness = nn.Parameter(torch.tensor(100.0))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.steepness * (x.sum(1) - 1))
        return torch.stack([-z, z], 1)


def test_masked_gradients_are_flagged() -> None:
    x = torch.rand(32, 6, generator=torch.Generator().manual_seed(0)) / 2 + 0.5
    y = torch.ones(32, dtype=torch.int64)
    record = AuditSession(Saturated()).measure(Attacks(epsilons=(0.2, 0.75), unit="absolute", restarts=1), [(x, y)])
    assert number(record, "zero_gradient_share", "fgsm", epsilon=0.75) == 1
    assert number(record, "zero_gradient_share", "pgd", epsilon=0.75, steps=10) > 0.9
    assert number(record, "accuracy", "fgsm", epsilon=0.75) == 1  # though an attack there is: all entries less 0.75
    assert number(record, "random_below_attack") == 0
    with torch.no_grad():
        assert (Saturated()(x - 0.75).argmax(1) == 0).all()


def test_attacks_on_tokens_are_remembered_piece_by_piece(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = language_models()["llama"]().float()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    probe = Attacks(epsilons=(0.5, 2.0), steps=3, restarts=1, seeds=2, texts=1)
    first = AuditSession(model, cache=tmp_path).measure(probe, [token_batch("llama")])
    ran = len(calls)
    second = AuditSession(model, cache=tmp_path).measure(probe, [token_batch("llama")])
    assert ran > 0
    assert len(calls) == ran  # nothing was run again
    assert [(r.name, r.value) for r in first.rows()] == [(r.name, r.value) for r in second.rows()]
    assert first.notes == second.notes
    more = Attacks(epsilons=(0.5, 1.0, 2.0), steps=3, restarts=1, seeds=2, texts=1)
    third = AuditSession(model, cache=tmp_path).measure(more, [token_batch("llama")])
    assert 0 < len(calls) - ran < ran
    assert number(third, "loss", "pgd", epsilon=2.0, steps=3) == number(first, "loss", "pgd", epsilon=2.0, steps=3)
    assert number(third, "epsilon_token", "pgd", epsilon=1.0) == pytest.approx(1)
    assert third.notes["target"] == "embeddings"
    assert third.notes["per"] == "token"
    assert [text["epsilon"] for text in third.notes["texts"]] == [0.5, 1.0, 2.0]
    assert third.notes["texts"][0]["changed"] == 0  # nearer to itself than to any other


def test_regression_has_a_loss_and_no_accuracy() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    data = [(torch.randn(8, 3), torch.randn(8, 1))]
    record = AuditSession(model).measure(Attacks(steps=2, restarts=1), data)
    for name in ("accuracy", "kl"):
        (row,) = rows(record, name, "fgsm", epsilon=0.1)
        assert row.value is None
        assert row.status is not None
        assert row.status.startswith("float targets")
    assert number(record, "loss", "fgsm", epsilon=0.1) > number(record, "loss", "clean")
    (gap,) = rows(record, "robustness_gap")
    assert gap.value is None
    noise = AuditSession(model).measure(NoiseRobustness(sigmas=(0.1,), bits=(4,)), data)
    (row,) = rows(noise, "kl_mean", "weight_noise")
    assert row.value is None
    assert number(noise, "loss_mean", "weight_noise") > 0


def test_noise_on_weights(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    before = copy.deepcopy(model.state_dict())
    record = AuditSession(model).measure(NoiseRobustness(sigmas=(0.0, 0.5), bits=(8, 2), examples=40), [(x, y)])
    for name, kept in before.items():
        assert torch.equal(kept, model.state_dict()[name])
    losses = [F.cross_entropy(one(x), y).item() for one in noisy_copies(model, 0.5)]
    mean = number(record, "loss_mean", "weight_noise", level=0.5)
    assert mean == pytest.approx(np.mean(losses), rel=1e-9)
    low, high = (number(record, f"loss_mean_{end}", "weight_noise", level=0.5) for end in ("low", "high"))
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 4, np.mean(losses), stats.sem(losses)))
    assert number(record, "kl_mean", "weight_noise", level=0.0) == 0
    clean = (model(x).argmax(1) == y).double().mean().item()
    assert number(record, "accuracy_mean", "weight_noise", level=0.0) == pytest.approx(clean)
    kl = [number(record, "kl_mean", "quantisation_noise", level=bits) for bits in (8, 2)]
    assert 0 < kl[0] < kl[1]
    assert number(record, "seeds", "quantisation_noise", level=2) == 5
    with pytest.raises(ValueError, match="seeds is a whole number from 5"):
        NoiseRobustness(seeds=4)


@torch.no_grad()
def noisy_copies(model: nn.Module, sigma: float) -> Iterator[nn.Module]:
    """The same noise, drawn and added by hand."""
    for seed in range(5):
        generator, other = torch.Generator().manual_seed(seed), copy.deepcopy(model)
        for layer in (other[0], other[3]):  # type: ignore[index]
            weight = layer.weight
            drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight += drawn * sigma * torch.from_numpy(np.sqrt((weight.numpy() ** 2).mean(1, keepdims=True)))
        yield other


def test_damaged_tokens_and_inputs(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    gpt2 = language_models()["gpt2"]().float()
    batch = token_batch("gpt2")
    record = AuditSession(gpt2).measure(InputPerturbation(levels=(0.0, 0.4)), [batch])
    clean = number(record, "loss_mean", "clean", level=0.0)
    for scope in ("token_dropout", "token_substitution"):
        assert number(record, "loss_mean", scope, level=0.0) == pytest.approx(clean, rel=1e-6)
        assert number(record, "changed_share", scope, level=0.0) == 0
        (row,) = rows(record, "loss_mean_low", scope, level=0.4)
        assert row.value is not None
        # 9, 6 and 4 tokens: round(3.6), round(2.4), round(1.6) of them
        assert number(record, "changed_share", scope, level=0.4) == pytest.approx((4 + 2 + 2) / 19)
        assert number(record, "loss_mean", scope, level=0.4) != pytest.approx(clean, rel=1e-6)
    assert record.notes["dropout"] == "remove"
    model, x, y = digits
    record = AuditSession(model).measure(InputPerturbation(levels=(0.3,), examples=40), [(x, y)])
    kept = number(record, "accuracy_mean", "clean")
    assert number(record, "accuracy_mean", "input_dropout") < kept
    assert number(record, "accuracy_mean", "input_noise") <= kept
    assert abs(number(record, "changed_share", "input_dropout") - 0.3) < 0.02


def test_attacks_at_one_width_are_tried_at_every_other(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    before = copy.deepcopy(model.state_dict())
    probe = BitRobustness(bits=(8, 2), epsilon=0.1, unit="absolute", steps=4, examples=12, clip=(0, 1))
    record = AuditSession(model).measure(probe, [(x, y)])
    for name, kept in before.items():
        assert torch.equal(kept, model.state_dict()[name])
    x, y = x[:12], y[:12]
    at = {bits: rounded(model, bits) for bits in (0, 8, 2)}
    for attack_bits in at:
        attacked = plain_pgd(at[attack_bits], x, y, torch.zeros_like(x), 0.1, 2.5 * 0.1 / 4, 4, (0, 1))
        for test_bits, other in at.items():
            labels = {"attack_bits": attack_bits, "test_bits": test_bits}
            with torch.no_grad():
                loss = F.cross_entropy(other(attacked), y).item()
                right = (other(attacked).argmax(1) == y).double().mean().item()
            assert number(record, "loss", "pgd", **labels) == pytest.approx(loss, rel=1e-6)
            assert number(record, "accuracy", "pgd", **labels) == pytest.approx(right)
    with torch.no_grad():
        clean = F.cross_entropy(at[2](x), y).item()
    assert number(record, "loss", "clean", bits=2) == pytest.approx(clean, rel=1e-9)
    assert record.notes["epsilon"] == 0.1


def rounded(model: nn.Module, bits: int) -> nn.Module:
    other = copy.deepcopy(model).eval()
    for layer in (other[0], other[3]) if bits else ():  # type: ignore[index]
        layer.weight.data = fake_quantize(layer.weight.data, bits)
    return other


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Attacks(epsilons=(0.1, -1.0)), "a sequence of numbers from 0"),
        (lambda: Attacks(epsilons=()), "a sequence of numbers"),
        (lambda: Attacks(norm="l1"), "one of linf, l2"),  # type: ignore[arg-type]
        (lambda: Attacks(clip=(1, 0)), "lowest and the highest"),
        (lambda: BitRobustness(bits=(9,)), "2 to 8"),
        (lambda: InputPerturbation(levels=(1.5,)), "from 0 to 1"),
        (lambda: NoiseRobustness(bits=(16,)), "from 2 to 8"),
        (lambda: NoiseRobustness(sigmas=(math.nan,)), "a sequence of numbers"),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
