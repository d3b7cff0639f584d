"""Models that change under the analysis, or are odd from the start: handled, or refused with the cure."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from analysis.loops import Net, batches, nudge, tiny_llama, tokens, train
from learnscope.analysis import AnalysisConfig, ModelAnalysisManager, ParameterDelta, ParameterSnapshot

BATCH = batches(1)[0]


def create(strict: bool = True, **options: Any) -> ModelAnalysisManager:
    return ModelAnalysisManager.create(AnalysisConfig(**{"interval": 1, **options}), strict=strict)


def change_shape(model: Net) -> None:
    model.last = nn.Linear(24, 6)


def add_layer(model: Net) -> None:
    model.extra = nn.Linear(3, 3)


def remove_layer(model: Net) -> None:
    model.norm = nn.Identity()


@pytest.mark.parametrize("change", [change_shape, add_layer, remove_layer])
def test_another_architecture_is_refused_with_reset_as_the_cure(change: Any) -> None:
    model, analyzer = Net(), create(strict=False, activation_enabled=True)
    analyzer.on_optimizer_step(model, inputs=BATCH)
    change(model)
    with pytest.warns(ls.ProbeWarning, match=r"call reset\(\)") as caught:
        metrics = analyzer.on_optimizer_step(model, inputs=BATCH)
        analyzer.on_optimizer_step(model, inputs=BATCH)
    assert len(caught) == 1
    # what does not compare with earlier weights goes on
    assert metrics["activation/units"] > 0
    assert not any(key.startswith(("param_change/", "sparse/")) for key in metrics)
    analyzer.reset()
    assert analyzer.on_optimizer_step(model, inputs=BATCH) == {}
    nudge(model)
    assert analyzer.on_optimizer_step(model, inputs=BATCH)["param_change/norm_l2"] > 0


def test_another_architecture_under_strict_raises() -> None:
    model, analyzer = Net(), create()
    analyzer.on_optimizer_step(model, inputs=BATCH)
    change_shape(model)
    with pytest.raises(ValueError, match=r"last\.\w+ changed shape(.|\n)*reset\(\)"):
        analyzer.on_optimizer_step(model, inputs=BATCH)


def test_a_replaced_but_equal_parameter_is_followed() -> None:
    model, analyzer = Net(), create(sparse_quality_enabled=False)
    analyzer.on_optimizer_step(model)
    model.last.weight = nn.Parameter(model.last.weight.detach() + 0.5)
    assert analyzer.on_optimizer_step(model)["param_change/norm_max"] == pytest.approx(0.5)


def test_a_dtype_that_changes_is_a_change_like_any_other() -> None:
    model, analyzer = Net(), create(sparse_quality_enabled=False)
    analyzer.on_optimizer_step(model)
    before = model.first.weight.detach().clone()
    model.bfloat16()
    rounding = (model.first.weight.detach().float() - before).abs().max()
    assert analyzer.on_optimizer_step(model)["param_change/norm_max"] >= float(rounding) > 0


def test_sparse_quality_across_a_change_of_dtype_leaves_the_weights_alone() -> None:
    """The kept float32 weights have values that bfloat16 has not."""
    model, analyzer = nn.Sequential(nn.Linear(10, 24), nn.Linear(24, 4)), create(sparse_quality_thresholds=[1e-4, 1e-3])
    analyzer.on_optimizer_step(model)
    kept = [p.detach().to(torch.bfloat16).float() for p in model.parameters()]
    nudge(model, 1e-3)
    model.bfloat16()
    before = [p.detach().clone() for p in model.parameters()]
    metrics = analyzer.on_optimizer_step(model, inputs=(BATCH[0].bfloat16(), BATCH[1]))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    beyond = sum(int(((b.float() - k).abs() > 1e-3).sum()) for b, k in zip(before, kept, strict=True))
    assert metrics["sparse/kept_ratio_at_1e-03"] == beyond / sum(b.numel() for b in before)


def test_layers_tied_through_their_data_are_counted_once_in_sparse_quality_and_left_alone() -> None:
    model, analyzer = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)), create()
    model[1].weight = nn.Parameter(model[0].weight.data)  # two parameters, one memory
    analyzer.on_optimizer_step(model)
    model[0].weight.data[0] += 0.1
    before = model[0].weight.detach().clone()
    metrics = analyzer.on_optimizer_step(model, inputs=BATCH)
    assert torch.equal(model[0].weight, before)
    assert metrics["sparse/kept_ratio_at_1e-06"] == 0.1


def test_parameters_that_are_no_floats_are_left_out() -> None:
    model = Net()
    model.register_parameter("counts", nn.Parameter(torch.arange(5), requires_grad=False))
    analyzer = create(param_change_per_layer=True)
    analyzer.on_optimizer_step(model, inputs=BATCH)
    nudge(model)
    model.counts.data += 1
    metrics = analyzer.on_optimizer_step(model, inputs=BATCH)
    floats = sum(p.numel() for p in model.parameters() if p.is_floating_point())
    assert metrics["param_change/norm_l1"] == pytest.approx(metrics["param_change/mean_abs_delta"] * floats)
    assert "param_change/layer_(root)/mean_abs_delta" not in metrics
    assert model.counts.tolist() == [1, 2, 3, 4, 5]


def test_tied_weights_count_once_and_stay_tied() -> None:
    model = tiny_llama(tie_word_embeddings=True)
    analyzer = create()
    batch = tokens()
    analyzer.on_optimizer_step(model, inputs=batch)
    nudge(model)
    metrics = analyzer.on_optimizer_step(model, inputs=batch)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    entries = sum(p.numel() for p in model.parameters())
    assert metrics["param_change/norm_l1"] == pytest.approx(metrics["param_change/mean_abs_delta"] * entries)
    assert metrics["sparse/kl_at_1e-04"] >= 0


def test_frozen_parameters_are_unchanged_entries() -> None:
    model = Net()
    model.first.requires_grad_(False)
    analyzer = create(param_change_per_layer=True)
    _, (_, metrics), _ = train(analyzer, 2, model=model)
    total = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.first.parameters())
    assert metrics["param_change/layer_first/mean_abs_delta"] == 0
    assert metrics["param_change/sparsity_at_1e-08"] == pytest.approx(frozen / total, abs=0.02)
    assert not model.first.weight.requires_grad


def test_weights_that_become_nan_are_counted_and_never_unchanged() -> None:
    model, analyzer = Net(), create()
    analyzer.on_optimizer_step(model, inputs=BATCH)
    model.last.weight.data[0, :3] = torch.tensor([math.nan, math.inf, 1e30])
    bits = model.last.weight.detach().view(torch.int32).clone()
    metrics = analyzer.on_optimizer_step(model, inputs=BATCH)
    total = sum(p.numel() for p in model.parameters())
    assert math.isnan(metrics["param_change/norm_l2"])
    assert (metrics["param_change/nan"], metrics["param_change/inf"]) == (1, 1)
    assert metrics["param_change/changed_ratio_at_1e-04"] == pytest.approx(3 / total)
    assert math.isnan(metrics["sparse/kl_at_1e-04"])
    assert analyzer.reasons["param_change/norm_l2"] == "nan"
    assert torch.equal(model.last.weight.detach().view(torch.int32), bits)


class Regressor(nn.Linear):
    pass


def test_a_regression_model_has_no_kl_and_says_why() -> None:
    model, analyzer = Regressor(10, 3), create()
    batch = (torch.randn(6, 10), torch.randn(6, 3))
    analyzer.on_optimizer_step(model, inputs=batch)
    nudge(model)
    metrics = analyzer.on_optimizer_step(model, inputs=batch)
    assert math.isnan(metrics["sparse/kl_at_1e-04"])
    assert "float targets" in analyzer.reasons["sparse/kl_at_1e-04"]
    assert metrics["sparse/mse_at_1e-04"] >= 0


@pytest.mark.parametrize("kind", ["dictionary", "tuple", "tensor", "mask beside it", "labels"])
def test_batches_of_every_kind(kind: str) -> None:
    """The same tokens in other forms; where padding is known, padded positions never count."""
    model, batch = tiny_llama(), tokens()
    forms: dict[str, Any] = {
        "dictionary": {"inputs": batch},
        "tuple": {"inputs": (batch["input_ids"],)},
        "tensor": {"inputs": batch["input_ids"]},
        "mask beside it": {"inputs": batch["input_ids"], "attention_mask": batch["attention_mask"]},
        "labels": {"inputs": {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}},
    }
    analyzer = create(sparse_quality_thresholds=[1e-3])
    analyzer.on_optimizer_step(model, **forms[kind])
    was = {name: p.detach().clone() for name, p in model.named_parameters()}
    nudge(model, 1e-3)
    metrics = analyzer.on_optimizer_step(model, **forms[kind])
    masked = kind not in ("tuple", "tensor")
    expected = reference_kl(model, was, batch, 1e-3, masked=masked, shifted=masked)
    assert metrics["sparse/kl_at_1e-03"] == pytest.approx(expected, rel=1e-6)


def reference_kl(
    model: nn.Module, old: dict[str, Tensor], batch: dict[str, Tensor], threshold: float, *, masked: bool, shifted: bool
) -> float:
    """By hand, in float64, on two state dictionaries."""
    import copy

    sparse = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in sparse.named_parameters():
            p.copy_(torch.where((p - old[name]).abs() <= threshold, old[name], p))
        arguments = batch if masked else {"input_ids": batch["input_ids"]}
        logits = [m.eval()(**arguments).logits.double() for m in (model, sparse)]
    model.train()
    p, q = (x.log_softmax(-1) for x in logits)
    kl = (p.exp() * (p - q)).sum(-1)
    mask = batch["attention_mask"].bool() if masked else torch.ones_like(batch["input_ids"], dtype=torch.bool)
    if shifted:
        kl, mask = kl[:, :-1], mask[:, 1:] & mask[:, :-1]
    return float(kl[mask].mean())


class TakesItWhole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.inner(batch[0])


def test_a_model_that_takes_the_whole_batch_is_called_so() -> None:
    model, analyzer = TakesItWhole(), create()
    for _ in range(2):
        model(BATCH).sum().backward()
        nudge(model)
        metrics = analyzer.on_optimizer_step(model, inputs=BATCH)
    assert metrics["sparse/kl_at_1e-04"] >= 0


def test_a_model_that_returns_its_loss_is_told_so() -> None:
    class Loss(TakesItWhole):
        def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(super().forward(batch), batch[1])

    model, analyzer = Loss(), create(strict=False)
    with pytest.warns(ls.ProbeWarning, match="returns a single number for 16 examples, its loss perhaps"):
        for _ in range(2):
            model(BATCH).backward()
            nudge(model)
            metrics = analyzer.on_optimizer_step(model, inputs=BATCH)
    assert metrics["param_change/norm_l2"] > 0


def test_the_call_of_a_model_with_several_arguments_is_repeated() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, left: Tensor, right: Tensor, *, scale: float = 1.0) -> Tensor:
            return self.layer(left - right) * scale

    model, analyzer = Two(), create(sparse_quality_thresholds=[1e9])
    left, right = torch.randn(5, 4), torch.randn(5, 4)
    was: dict[str, Tensor] = {}
    for _ in range(2):
        model(left, right, scale=3.0).sum().backward()
        with torch.no_grad():
            model(left * 9, right)  # an evaluation: not what is trained on
        metrics = analyzer.on_optimizer_step(model)
        if not metrics:
            was = {name: p.detach().clone() for name, p in model.named_parameters()}
            nudge(model)
    p, q = (
        torch.nn.functional.linear(left - right, w["layer.weight"], w["layer.bias"]).mul(3).double().log_softmax(-1)
        for w in (dict(model.named_parameters()), was)
    )
    assert metrics["sparse/kl_at_1e+09"] == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-6)


# going on after a restart


def test_a_resumed_analysis_equals_an_uninterrupted_one() -> None:
    config = AnalysisConfig(interval=3, gradient_enabled=True, momentum_enabled=True, param_change_per_layer=True)
    whole = ModelAnalysisManager.create(config, strict=True)
    _, expected, _ = train(whole, 12)

    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    analyzer, found = ModelAnalysisManager.create(config, strict=True), []
    for step, (x, y) in enumerate(batches(12)):
        if step == 5:  # between two measurements
            state = analyzer.state_dict()
            analyzer = ModelAnalysisManager.create(config, strict=True)
            analyzer.load_state_dict(state)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        found.append(analyzer.on_optimizer_step(model, inputs=(x, y)))
        optimizer.zero_grad()
    assert [list(m) for m in found] == [list(m) for m in expected]
    assert found == expected


@pytest.mark.parametrize("interrupted", range(1, 6))
@pytest.mark.parametrize("handed_over", [True, False])
def test_resumed_at_any_step_with_the_model_nothing_is_missing(interrupted: int, handed_over: bool) -> None:
    """Also what is seen only while the optimizer steps, and right before a measurement."""
    config = AnalysisConfig(interval=3, gradient_enabled=True, momentum_enabled=True)

    def run(stop: int | None) -> list[dict[str, Any]]:
        torch.manual_seed(1)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        analyzer, found = ModelAnalysisManager.create(config, strict=True), []
        for step, (x, y) in enumerate(batches(7)):
            if step == stop:
                state = analyzer.state_dict()
                analyzer.close()
                analyzer = ModelAnalysisManager.create(config, strict=True)
                analyzer.load_state_dict(state, model, optimizer)
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            found.append(analyzer.on_optimizer_step(model, inputs=(x, y) if handed_over else None))
        return found

    assert "gradient/norm_before_clip" in run(None)[3]
    assert run(interrupted) == run(None)


def test_a_state_survives_a_file_without_pickled_code(tmp_path: Any) -> None:
    analyzer = create(interval=2)
    train(analyzer, 4)
    torch.save(analyzer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    again = create(interval=2)
    again.load_state_dict(state)
    assert state["steps"] == 3
    assert state["snapshot_step"] == 2
    assert train(again, 1)[1][0]["param_change/norm_l2"] > 0


def test_a_state_taken_is_not_changed_by_what_follows() -> None:
    analyzer = create()
    model, *_ = train(analyzer, 2)
    state = analyzer.state_dict()
    copies = {name: tensor.clone() for name, tensor in state["weights"].items()}
    train(analyzer, 2, model=model)
    assert all(torch.equal(state["weights"][name], copy) for name, copy in copies.items())


def test_a_state_of_another_model_or_of_something_else_is_refused() -> None:
    analyzer = create()
    with pytest.raises(ValueError, match="no state of a ModelAnalysisManager: it has no 'snapshot_step'"):
        analyzer.load_state_dict({"steps": 3})
    train(analyzer, 2)
    other = create()
    other.load_state_dict(analyzer.state_dict())
    with pytest.raises(ValueError, match=r"another model: call reset\(\)"):
        other.on_optimizer_step(nn.Linear(2, 2), inputs=torch.ones(1, 2))


# where the weights are kept


@pytest.mark.parametrize("device", ["cpu", "disk"])
@pytest.mark.parametrize("dtype", ["native", "float64", "float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_weights_kept_anywhere_in_any_dtype(device: str, dtype: str) -> None:
    model, analyzer = Net(), create(snapshot_device=device, snapshot_dtype=dtype)
    analyzer.on_optimizer_step(model, inputs=BATCH)
    kind = torch.float32 if dtype == "native" else getattr(torch, dtype)
    kept = {name: p.detach().to(kind).double() for name, p in model.named_parameters()}
    nudge(model, 0.5)
    bits = {name: p.detach().clone() for name, p in model.named_parameters()}
    metrics = analyzer.on_optimizer_step(model, inputs=BATCH)
    for name, p in model.named_parameters():  # what rounds to the copy counts as unchanged
        kept[name] = torch.where(p.to(kind).double() == kept[name], p.double(), kept[name]).detach()
    expected = math.sqrt(sum(float((p.double() - kept[n]).square().sum()) for n, p in model.named_parameters()))
    assert metrics["param_change/norm_l2"] == pytest.approx(expected, rel=1e-6)
    assert metrics["sparse/kl_at_1e-04_random_changed"] >= 0
    assert all(torch.equal(p, bits[name]) for name, p in model.named_parameters())


def test_the_memory_beyond_the_snapshot_is_stated(tmp_path: Any) -> None:
    model = Net()
    full = sum(p.nbytes for p in model.parameters())
    for number, (options, expected) in enumerate(
        [
            ({"snapshot_dtype": "float16"}, full),
            ({"snapshot_device": "disk"}, full),
            ({"snapshot_dtype": "float64"}, None),
        ]
    ):
        config = AnalysisConfig(interval=1, **options)
        analyzer = ModelAnalysisManager.create(config, run=tmp_path / str(number), strict=True)
        analyzer.on_optimizer_step(model, inputs=BATCH)
        nudge(model)
        analyzer.on_optimizer_step(model, inputs=BATCH)
        analyzer.close()
        (record,) = ls.open_run(tmp_path / str(number)).records("SparseQuality")
        assert record.notes.get("extra_memory") == expected


def test_a_run_folder_takes_the_records_too(tmp_path: Any) -> None:
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=2), run=tmp_path / "run", strict=True)
    _, returned, _ = train(analyzer, 5)
    analyzer.close()
    run = ls.open_run(tmp_path / "run")
    frame = run.frame("ParameterChange", "l2", "model")
    assert frame.step.tolist() == [2, 4]
    assert frame.value.tolist() == [m["param_change/norm_l2"] for m in returned if m]
    assert run.manifest["status"] == "finished"
    assert run.report().exists()


# primitives


def test_what_primitives_hand_out_cannot_change_them() -> None:
    model = Net()
    before = ParameterSnapshot.from_model(model)
    nudge(model)
    delta = ParameterSnapshot.from_model(model, dtype="native") - before
    for thing in (before, delta):
        first = thing["last.weight"].clone()
        thing["last.weight"].zero_()
        dict(thing)["last.weight"].zero_()
        for tensor in thing.values():
            tensor.zero_()
        assert torch.equal(thing["last.weight"], first)
        with pytest.raises(TypeError):
            thing["last.weight"] = first  # type: ignore[index]
        with pytest.raises(AttributeError, match="cannot assign to field 'step'"):
            thing.step = 7  # type: ignore[misc]
        with pytest.raises(AttributeError, match="cannot delete field 'step'"):
            del thing.step
    statistics = delta.statistics()
    statistics["norm_l2"] = 0.0
    assert delta.norm_l2 > 0


def test_snapshots_of_two_architectures_have_no_difference() -> None:
    with pytest.raises(ValueError, match=r"reset\(\)"):
        ParameterDelta(dict(nn.Linear(2, 2).named_parameters()), ParameterSnapshot.from_model(Net()), step=1)
