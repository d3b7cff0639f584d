"""The attributor where it could go wrong: one float64 backward an example, real architectures, awkward checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import learnscope as ls
from dynamics.traces import watched
from learnscope.dynamics import PhaseTransitionAttributor
from learnscope.model.data import DataError
from model.examples.one_by_one import Custom, tiny

Floats = NDArray[np.float64]


def gradients(model: nn.Module, losses: Sequence[Tensor]) -> Floats:
    """A backward an example; a parameter that two places share is one."""
    chosen = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, chosen, allow_unused=True, retain_graph=True)
        each = [torch.zeros_like(p) if g is None else g for p, g in zip(chosen, found, strict=True)]
        rows.append(torch.cat([g.flatten() for g in each]).double().numpy())
    return np.stack(rows)


def by_hand(sides: Sequence[tuple[nn.Module, Sequence[Tensor]]]) -> dict[str, Floats]:
    (one, loss_before), (two, loss_after) = (
        (gradients(model, losses), np.array([float(loss.detach()) for loss in losses])) for model, losses in sides
    )
    with np.errstate(invalid="ignore"):  # an example without a target has a gradient of zero here
        cosine = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    return {
        "scores": cosine * (loss_before - loss_after), "cosine": cosine, "loss_before": loss_before,
        "loss_after": loss_after,
    }  # fmt: skip


def moved(model: nn.Module, by: float = 0.3, seed: int = 5) -> Any:
    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p += by * torch.randn_like(p)
        for b in other.buffers():
            if b.is_floating_point() and b.ndim == 1:
                b += 0.1 * torch.rand_like(b)  # statistics of batch norm move too
    return other


class Conv(nn.Module):
    """Batch norm, dropout, a frozen convolution, and one matrix in two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.up, self.down, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.down.weight = self.up.weight
        self.first.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.norm(self.first(x)))).flatten(1)
        return self.head(self.down(torch.tanh(self.up(x))))


def images(n: int, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 1, 4, 4, generator=generator, dtype=torch.float64), torch.arange(n) % 3)


def losses_of(model: nn.Module, data: TensorDataset) -> list[Tensor]:
    model = model.eval()
    return [F.cross_entropy(model(x[None]), y[None]) for x, y in data]


@pytest.mark.parametrize("max_bytes", [1, 20_000, 256 << 20])
def test_all_three_methods_on_a_model_that_is_tied_frozen_and_in_training(max_bytes: int) -> None:
    """In one chunk or in many; every number from a backward an example in float64."""
    before = Conv().double().train()
    before.norm.eval()
    middle, after = moved(before, 0.1, 4), moved(before)
    train, test = images(26), images(7, seed=2)
    F.cross_entropy(before(train.tensors[0]), train.tensors[1]).backward()
    states = [watched(model) for model in (before, middle, after)]
    attributor = PhaseTransitionAttributor({2: before, 5: middle, 9: after}, train, test, max_bytes=max_bytes)
    found = attributor.compute_transition_attributions(2, 9)
    rates = {2: 0.1, 5: 0.0, 9: 0.03}
    traced = attributor.compute_transition_attributions(2, 9, method="tracin", learning_rates=rates)
    ridge = 0.5
    tracked = attributor.compute_transition_attributions(2, 9, method="trak", dims=None, ridge=ridge)
    assert [watched(model) for model in (before, middle, after)] == states

    copies = {epoch: copy.deepcopy(model).eval() for epoch, model in ((2, before), (5, middle), (9, after))}
    expected = by_hand([(copies[epoch], losses_of(copies[epoch], train)) for epoch in (2, 9)])
    for name, column in expected.items():
        np.testing.assert_allclose(getattr(found, name), column, atol=1e-10)
    total = np.zeros(26)
    for epoch, rate in rates.items():
        rows = gradients(copies[epoch], losses_of(copies[epoch], train))
        total += rate * rows @ gradients(copies[epoch], losses_of(copies[epoch], test)).mean(0)
    np.testing.assert_allclose(traced.scores, total, rtol=1e-9, atol=1e-12)

    shares, kernels = [], []
    for model in copies.values():
        phi, share = odds(model, train)
        against, _ = odds(model, test)
        shares.append(share)
        kernels.append(phi @ np.linalg.inv(phi.T @ phi + ridge * np.eye(phi.shape[1])) @ against.T)
    dense = np.mean(shares, axis=0)[:, None] * np.mean(kernels, axis=0)
    np.testing.assert_allclose(tracked.scores, dense.mean(1), rtol=1e-6, atol=1e-10)


def odds(model: nn.Module, data: TensorDataset) -> tuple[Floats, Floats]:
    """Gradients of log(p/(1 − p)) of the right class, and 1 − p."""
    rows = [torch.log_softmax(model.eval()(x[None]), 1)[0, int(y)] for x, y in data]
    values = [p - torch.log1p(-p.exp()) for p in rows]
    return gradients(model, values), 1 - np.array([float(p.detach().exp()) for p in rows])


LENGTHS = (6, 3, 4, 1, 5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_padding_on_either_side_and_labels_that_do_not_count(family: str, side: str) -> None:
    """Against the texts one by one; on the left the positions are given, as one would for generation."""
    torch.manual_seed(2)
    before = tiny(family).double().eval()
    after = moved(before, 0.05)
    ids = [torch.randint(3, 23, (n,)) for n in LENGTHS]
    batch = {"input_ids": torch.zeros(5, 6, dtype=torch.long), "labels": torch.full((5, 6), -100)}
    batch |= {"attention_mask": torch.zeros(5, 6, dtype=torch.long), "position_ids": torch.zeros(5, 6).long()}
    for row, text in enumerate(ids):
        place = slice(6 - len(text), 6) if side == "left" else slice(len(text))
        batch["input_ids"][row, place], batch["attention_mask"][row, place] = text, 1
        batch["position_ids"][row, place] = torch.arange(len(text))
        batch["labels"][row, place] = text
    first = slice(0, 2) if side == "right" else slice(6 - LENGTHS[0], 6 - LENGTHS[0] + 2)
    batch["labels"][0, first] = -100  # a prompt that is not learned from
    attributor = PhaseTransitionAttributor({0: before, 1: after}, [batch])
    states = watched(before), watched(after)
    found = attributor.compute_transition_attributions(0, 1)
    assert (watched(before), watched(after)) == states

    def losses(model: Any) -> list[Tensor]:
        scored = []
        for row, text in enumerate(ids):
            targets = text[1:].clone()
            if row == 0:
                targets[:1] = -100  # the first token is never predicted: of two, one is left to leave out
            logits = model(input_ids=text[None]).logits[0, :-1]
            scored.append(F.cross_entropy(logits, targets) if len(text) > 1 else logits.sum())
        return scored

    kept = [row for row, n in enumerate(LENGTHS) if n > 1]
    expected = by_hand([(model, losses(model)) for model in (before, after)])
    # the norms of Llama and Qwen2 compute in float32, whatever the weights are
    tolerance = 1e-11 if family == "gpt2" else 1e-6
    for name, column in expected.items():
        np.testing.assert_allclose(getattr(found, name)[kept], column[kept], atol=tolerance)
    assert np.isnan(found.scores[3])  # a text of one token predicts nothing
    assert set(found.reasons) == {3}
    assert "no target that counts" in found.reasons[3]
    assert 3 not in attributor.find_critical_examples(found, top_k=5)


def test_a_classifier_of_texts_from_dictionaries_with_padding() -> None:
    before = tiny("bert").double().eval()
    after = moved(before, 0.05)
    torch.manual_seed(3)
    items = []
    for row, n in enumerate(LENGTHS):
        ids = torch.zeros(6, dtype=torch.long)
        ids[:n] = torch.randint(3, 23, (n,))
        items.append({"input_ids": ids, "attention_mask": (torch.arange(6) < n).long(), "labels": row % 3})
    loader: Any = DataLoader(items, 2, shuffle=True)  # type: ignore[arg-type]
    found = PhaseTransitionAttributor({0: before, 1: after}, loader).compute_transition_attributions(0, 1)

    def losses(model: Any) -> list[Tensor]:
        return [
            F.cross_entropy(model(input_ids=item["input_ids"][None, :n]).logits, torch.tensor([item["labels"]]))
            for item, n in zip(items, LENGTHS, strict=True)
        ]

    for name, column in by_hand([(model, losses(model)) for model in (before, after)]).items():
        np.testing.assert_allclose(getattr(found, name), column, atol=1e-11)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2, 0, 1]


def test_kernels_that_vmap_does_not_know_and_parameters_that_are_not_reached() -> None:
    torch.manual_seed(0)
    before = Custom().double()
    after = moved(before)
    x, y = torch.arange(21) % 7, torch.arange(21) % 3
    data = TensorDataset(x, y)
    found = PhaseTransitionAttributor({0: before, 1: after}, data).compute_transition_attributions(0, 1)
    for name, column in by_hand([(model, losses_of(model, data)) for model in (before, after)]).items():
        np.testing.assert_allclose(getattr(found, name), column, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_near_to_double(dtype: torch.dtype) -> None:
    before = Conv().to(dtype)
    after = moved(before)
    data = images(20)
    low = TensorDataset(data.tensors[0].to(dtype), data.tensors[1])
    found = PhaseTransitionAttributor({0: before, 1: after}, low).compute_transition_attributions(0, 1)
    wide = [copy.deepcopy(model).double() for model in (before, after)]
    exact = TensorDataset(low.tensors[0].double(), low.tensors[1])
    expected = by_hand([(model, losses_of(model, exact)) for model in wide])
    tolerance = 2e-5 if dtype == torch.float32 else 0.15
    np.testing.assert_allclose(found.loss_before, expected["loss_before"], atol=tolerance)
    np.testing.assert_allclose(found.cosine, expected["cosine"], atol=tolerance)


def test_compiled_models_are_seen_through() -> None:
    before = Conv().double()
    after, data = moved(before), images(9)
    plain = PhaseTransitionAttributor({0: before, 1: after}, data).compute_transition_attributions(0, 1)
    compiled: list[Any] = [torch.compile(model, backend="eager") for model in (before, after)]
    found = PhaseTransitionAttributor(dict(enumerate(compiled)), data).compute_transition_attributions(0, 1)
    np.testing.assert_array_equal(found.scores, plain.scores)


def test_checkpoints_in_every_form_are_the_same_checkpoint(tmp_path: Path) -> None:
    before = Conv().double()
    after, data = moved(before), images(12)
    expected = PhaseTransitionAttributor({0: before, 1: after}, data).compute_transition_attributions(0, 1).scores
    torch.save(before.state_dict(), tmp_path / "a.pt")
    torch.save({"epoch": 1, "model_state_dict": after.state_dict()}, tmp_path / "b.ckpt")
    # tied weights stand once in a safetensors file
    save_file({k: v for k, v in after.state_dict().items() if k != "down.weight"}, tmp_path / "b.safetensors")
    wrapped = {f"module.{name}": value for name, value in before.state_dict().items()}
    for one, two in (
        (before.state_dict(), after.state_dict()), (str(tmp_path / "a.pt"), tmp_path / "b.ckpt"),
        (tmp_path / "a.pt", tmp_path / "b.safetensors"), (wrapped, after),
    ):  # fmt: skip
        model = Conv().double().train()
        state = watched(model)
        attributor = PhaseTransitionAttributor({0: one, 1: two}, data, model=model)
        np.testing.assert_array_equal(attributor.compute_transition_attributions(0, 1).scores, expected)
        assert watched(model) == state


def test_one_set_of_weights_under_two_epochs_is_refused(tmp_path: Path) -> None:
    """`state_dict()` holds the live weights: kept without a copy, all epochs are the last one."""
    model, data = Conv().double(), images(6)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    same: list[tuple[Any, Any]] = [
        (model, model), (model.state_dict(), model.state_dict()), (model.state_dict(), model),
        (tmp_path / "a.pt", str(tmp_path / "a.pt")),
    ]  # fmt: skip
    for one, two in same:
        attributor = PhaseTransitionAttributor({3: one, 8: two}, data, data, model=Conv().double())
        for method, more in (("transition", {}), ("tracin", {"learning_rates": 0.1}), ("trak", {"dims": 2})):
            with pytest.raises(ValueError, match=r"epochs 3 and 8 are the same weights in one place.*clone\(\)"):
                attributor.compute_transition_attributions(3, 8, method=method, **more)  # type: ignore[arg-type]
    # equal weights that are copies are an answer: nothing was lost
    found = PhaseTransitionAttributor({3: model, 8: copy.deepcopy(model)}, data).compute_transition_attributions(3, 8)
    np.testing.assert_allclose(found.cosine, 1.0)
    assert not found.scores.any()
    # a frozen part that two models share is no such mistake
    other = moved(model)
    other.first = model.first
    PhaseTransitionAttributor({3: model, 8: other}, data).compute_transition_attributions(3, 8)


def test_ids_travel_through_subsets_shuffling_and_workers() -> None:
    before = Conv().double()
    after, data = moved(before), images(30)
    whole = PhaseTransitionAttributor({0: before, 1: after}, data).compute_transition_attributions(0, 1)
    chosen = [29, 4, 17, 8, 11, 3]
    part = Subset(ls.IndexedDataset(data), chosen)
    for source in (part, DataLoader(part, 4, shuffle=True), DataLoader(part, 3, num_workers=1)):
        attributor = PhaseTransitionAttributor({0: before, 1: after}, source)
        found = attributor.compute_transition_attributions(0, 1)
        assert dict(found) == pytest.approx({i: whole[i] for i in chosen})
        critical = attributor.find_critical_examples(found, top_k=10**9)
        assert list(critical) == sorted(chosen, key=lambda i: -whole[i])
        counts = {label: sum(i % 3 == label for i in chosen) for label in {i % 3 for i in chosen}}
        assert attributor.analyze_critical_examples(critical)["label_distribution"] == counts
    twice = Subset(ls.IndexedDataset(data), [3, 4, 3])
    with pytest.raises(DataError, match="example id 3 comes 2 times"):
        PhaseTransitionAttributor({0: before, 1: after}, twice).compute_transition_attributions(0, 1)


class Augmented(Dataset[tuple[Tensor, int]]):
    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.given.append(torch.randn(1, 4, 4, dtype=torch.float64) + i)
        return self.given[-1], i % 3


def test_augmentation_is_the_same_on_both_sides_and_draws_nothing_of_the_users() -> None:
    before = Conv().double()
    after, data = moved(before), Augmented()
    attributor = PhaseTransitionAttributor({0: before, 1: after}, DataLoader(data, 5, shuffle=True))
    del data.given[:]
    torch.manual_seed(8)
    numbers = torch.get_rng_state().clone()
    found = attributor.compute_transition_attributions(0, 1)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert len(data.given) == 12
    seen = TensorDataset(torch.stack(data.given), torch.arange(12) % 3)
    expected = by_hand([(model, losses_of(model, seen)) for model in (before, after)])
    np.testing.assert_allclose(found.scores, expected["scores"], atol=1e-10)


def test_wrong_arguments_are_refused_in_words(tmp_path: Path) -> None:
    before = Conv().double()
    after, data = moved(before), images(9)
    with pytest.raises(ValueError, match=r"max_bytes=0: a whole number from 1"):
        PhaseTransitionAttributor({0: before, 1: after}, data, max_bytes=0)
    attributor = PhaseTransitionAttributor({0: before, 1: after}, data, data)
    rates: list[Any] = [float("nan"), float("inf"), -1, "0.1", True, {0: 0.1, 1: None}]
    for rate in rates:
        with pytest.raises(ValueError, match=r"learning_rates has .*: a learning rate is a number from 0, such as"):
            attributor.compute_transition_attributions(0, 1, method="tracin", learning_rates=rate)
    dims: list[Any] = [0, -3, 2.5, True]
    for value in dims:
        with pytest.raises(ValueError, match=f"dims is {value!r}: a whole number from 1"):
            attributor.compute_transition_attributions(0, 1, method="trak", dims=value)
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"ridge is {value}: a number from 0"):
            attributor.compute_transition_attributions(0, 1, method="trak", dims=2, ridge=value)
    found = attributor.compute_transition_attributions(0, 1)
    plain: Any = dict(found)
    for call in (attributor.find_critical_examples, lambda given: attributor.plot_attributions(tmp_path, given)):
        with pytest.raises(TypeError, match="what compute_transition_attributions gives, not a dict"):
            call(plain)
    with pytest.raises(ValueError, match="example 4 is named more than once"):
        attributor.analyze_critical_examples([1, 4, 4])
    with pytest.raises(TypeError, match="id='a': a whole number"):
        attributor.analyze_critical_examples("ab")  # type: ignore[arg-type]
    assert attributor.analyze_critical_examples(np.array([4, 1]))["examples"] == 2
    assert list(tmp_path.iterdir()) == []


def test_nothing_chosen_is_an_answer(tmp_path: Path) -> None:
    before = Conv().double()
    attributor = PhaseTransitionAttributor({0: before, 1: moved(before)}, images(9))
    found = attributor.compute_transition_attributions(0, 1)
    analysis = attributor.analyze_critical_examples(attributor.find_critical_examples(found, top_k=0))
    assert analysis["examples"] == 0
    assert analysis["label_distribution"] == analysis["label_enrichment"] == {}
    assert analysis["mean_cosine"] is None
    assert analysis["reasons"]["mean_cosine"] == "there is no critical example"
    names = {path.name for path in attributor.plot_attributions(tmp_path, top_k=0)}
    assert names == {"attribution_scores.png", "attribution_losses.png"}


def test_one_bad_example_is_named_and_spoils_no_other() -> None:
    before = Conv().double()
    after, good = moved(before), images(12)
    x = good.tensors[0].clone()
    x[7] = float("nan")
    bad = TensorDataset(x, good.tensors[1])
    clean = PhaseTransitionAttributor({0: before, 1: after}, good, good)
    for method, more in (("transition", {}), ("tracin", {"learning_rates": 0.1})):
        found = PhaseTransitionAttributor({0: before, 1: after}, bad, good).compute_transition_attributions(
            0, 1, method=method, **more
        )  # type: ignore[arg-type]
        expected = clean.compute_transition_attributions(0, 1, method=method, **more).scores  # type: ignore[arg-type]
        assert set(found.reasons) == {7}
        others = [i for i in range(12) if i != 7]
        np.testing.assert_allclose(found.scores[others], expected[others], rtol=1e-12)
    for method, more in (("tracin", {"learning_rates": 0.1}), ("trak", {"dims": 3})):
        with pytest.raises(ValueError, match="test example 7 has"):
            PhaseTransitionAttributor({0: before, 1: after}, good, bad).compute_transition_attributions(
                0, 1, method=method, **more
            )  # type: ignore[arg-type]


def trained(probe: ls.Probe, folder: Path | None = None, epochs: int = 4, **options: Any) -> ls.Run:
    model, data = Conv().double(), images(24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(0)
    with ls.watch(model, optimizer, probes=[probe], train=data, run=folder, strict=True, **options) as w:
        for _ in range(epochs):
            for x, y in DataLoader(data, 8):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            w.end_epoch()
    return w.run if folder is None else ls.open_run(folder)


def test_the_probe_in_a_watched_run_and_over_its_checkpoints(tmp_path: Path) -> None:
    """Buffers are those of now on both sides: a model without them gives what the attributor gives."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.randn(24, 5, dtype=torch.float64), torch.arange(24) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    kept = {0: copy.deepcopy(model)}
    with ls.watch(model, optimizer, probes=[ls.ExampleTransitions()], train=[(x, y)], strict=True) as w:
        for epoch in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            w.end_epoch()
            kept[epoch + 1] = copy.deepcopy(model)
    replayed = ls.replay(
        {epoch: one.state_dict() for epoch, one in kept.items()}, model=model, probes=[ls.ExampleTransitions()],
        train=[(x, y)], progress=False,
    )  # fmt: skip
    attributor = PhaseTransitionAttributor(kept, TensorDataset(x, y))
    for epoch in (1, 2, 3):
        expected = attributor.compute_transition_attributions(epoch - 1, epoch)
        for run in (w.run, replayed):
            arrays = run.arrays("ExampleTransitions", epoch)
            np.testing.assert_allclose(arrays["scores"], expected.scores, atol=1e-12)
        drop = expected.loss_before - expected.loss_after
        top = np.argsort(-expected.scores, kind="stable")[:3]
        rows = w.run.frame("ExampleTransitions", kind="model")
        now = rows[rows["step"] == epoch].set_index("name")["value"]
        assert now["mean_loss_drop"] == pytest.approx(drop.mean(), abs=1e-12)
        assert now["mean_cosine"] == pytest.approx(expected.cosine.mean())  # type: ignore[union-attr]
        assert now["top_share"] == pytest.approx(drop[top].sum() / drop.sum())
        quantiles = w.run.frame("ExampleTransitions", "loss_drop", "quantile")
        quantiles = quantiles[quantiles["step"] == epoch]
        places = quantiles["scope"].astype(float).to_numpy()
        assert 0.5 in places
        np.testing.assert_allclose(quantiles["value"], np.quantile(drop, places), atol=1e-12)


def test_a_budget_stretches_the_probe_and_says_so() -> None:
    whole, spared = (
        trained(ls.ExampleTransitions(), epochs=12),
        trained(ls.ExampleTransitions(), budget=1e-4, epochs=12),
    )
    all_steps, few = (run.array_steps("ExampleTransitions") for run in (whole, spared))
    assert len(all_steps) == 12
    assert 1 <= len(few) < 12
    since = [record.notes["since_step"] for record in spared.records() if record.probe == "ExampleTransitions"]
    assert since == [0, *sorted(few)[:-1]]  # what was skipped is part of the next way
