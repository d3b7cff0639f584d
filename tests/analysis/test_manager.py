"""The manager within a loop: when it measures, what it says, and what it leaves alone."""

from __future__ import annotations

import gc
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import learnscope as ls
from analysis.loops import Net, batches, nudge, tiny_llama, tokens, train
from learnscope.analysis import (
    AnalysisConfig,
    AnalysisContext,
    GradientMetrics,
    MetricComputer,
    ModelAnalysisManager,
    ParameterChangeMetrics,
    SparseQualityMetrics,
)
from learnscope.session.steps import clipping
from learnscope.session.telling.listeners import remove_gone


def create(**options: Any) -> ModelAnalysisManager:
    return ModelAnalysisManager.create(AnalysisConfig(**options), strict=True)


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_the_first_call_is_the_reference_and_metrics_come_an_interval_later(interval: int) -> None:
    _, returned, _ = train(create(interval=interval), 3 * interval + 1)
    assert [bool(metrics) for metrics in returned] == [i > 0 and i % interval == 0 for i in range(len(returned))]


def test_the_change_is_since_the_last_measurement() -> None:
    model = nn.Linear(3, 1, bias=False)
    analyzer = create(interval=2, sparse_quality_enabled=False)
    seen = []
    for _ in range(7):
        model.weight.data += 0.25
        seen.append(analyzer.on_optimizer_step(model).get("param_change/norm_max"))
    assert seen == [None, None, 0.5, None, 0.5, None, 0.5]


def test_every_documented_key_of_a_language_model_is_there() -> None:
    model, batch = tiny_llama(), tokens()
    analyzer = create(interval=1, param_change_per_layer=True, param_change_track_components=True)
    analyzer.on_optimizer_step(model, inputs=batch)
    nudge(model)
    metrics = analyzer.on_optimizer_step(model, inputs=batch)
    expected = ["norm_l2", "norm_l1", "norm_max", "mean", "std"]
    expected += [f"{name}_at_{t}" for name in ("sparsity", "changed_ratio") for t in ("1e-08", "1e-06", "1e-04")]
    expected += [f"layer_{n}/{name}" for n in (0, 1) for name in ("mean_abs_delta", "sparsity")]
    expected += [f"component/{c}/mean_abs_delta" for c in ("q_proj", "gate_proj", "down_proj", "o_proj")]
    names = ("kl", "cosine", "mse", "top1_agree", "kept_ratio", "unchanged_ratio")
    compared = [f"{name}_at_{t}{end}" for name in names for t in ("1e-08", "1e-06", "1e-04") for end in ENDS]
    missing = {f"param_change/{key}" for key in expected} | {f"sparse/{key}" for key in compared}
    missing -= set(metrics)
    assert not missing
    assert all(isinstance(value, float | int) for value in metrics.values())
    for t in ("1e-08", "1e-06", "1e-04"):
        assert metrics[f"param_change/changed_ratio_at_{t}"] == 1 - metrics[f"param_change/sparsity_at_{t}"]
        assert metrics[f"sparse/unchanged_ratio_at_{t}"] == pytest.approx(metrics[f"param_change/sparsity_at_{t}"])


ENDS = ("", "_random", "_random_changed")


def test_thresholds_that_print_alike_get_more_digits() -> None:
    analyzer = create(
        interval=1, param_change_thresholds=[1.5e-6, 2e-6, 1e-3], sparse_quality_thresholds=[1.5e-6, 2e-6]
    )
    _, (_, metrics), _ = train(analyzer, 2)
    keys = [key.removeprefix("param_change/sparsity_at_") for key in metrics if "param_change/sparsity_at" in key]
    assert keys == ["1.5e-06", "2.0e-06", "1e-03"]
    assert {"sparse/kl_at_1.5e-06", "sparse/kl_at_2.0e-06_random"} <= set(metrics)


def test_the_two_stacks_of_an_encoder_decoder_are_not_mixed_up() -> None:
    model = nn.Transformer(8, 2, 2, 2, 16)
    analyzer = create(interval=1, sparse_quality_enabled=False, param_change_per_layer=True)
    analyzer.on_optimizer_step(model)
    nudge(model)
    layers = {key.split("/")[1] for key in analyzer.on_optimizer_step(model) if "/layer_" in key}
    assert {"layer_encoder.layers.0", "layer_decoder.layers.0", "layer_encoder.layers.1"} <= layers


def test_the_reason_for_a_nan_stands_under_its_key_in_both_stacks() -> None:
    model = nn.Transformer(8, 2, 2, 2, 16)
    # weights kept as float16 cannot be compared with float32 bit by bit
    config = AnalysisConfig(
        interval=1, sparse_quality_enabled=False, param_change_per_layer=True, snapshot_dtype="float16"
    )
    analyzer = ModelAnalysisManager.create(config, strict=True)
    analyzer.on_optimizer_step(model)
    nudge(model)
    metrics = analyzer.on_optimizer_step(model)
    missing = {key for key, value in metrics.items() if math.isnan(value)}
    assert "param_change/layer_decoder.layers.1/visible_share" in missing
    assert analyzer.reasons.keys() == missing


def test_presets() -> None:
    minimal, everything = AnalysisConfig.minimal(), AnalysisConfig.comprehensive()
    assert (minimal.interval, minimal.param_change_enabled, minimal.sparse_quality_enabled) == (1000, True, False)
    assert everything.interval == 50
    assert everything.param_change_per_layer
    assert everything.param_change_track_components
    assert everything.gradient_enabled
    assert everything.momentum_enabled
    everything.interval = 1
    _, (_, metrics), _ = train(ModelAnalysisManager.create(everything, strict=True), 2)
    families = {key.split("/")[0] for key in metrics}
    assert families == {"param_change", "sparse", "low_rank", "gradient", "momentum", "activation", "landscape"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"intervall": 5}, "has no option 'intervall'. Did you mean 'interval'"),
        ({"interval": 0}, "interval=0"),
        ({"interval": True}, "interval=True"),
        ({"snapshot_dtype": "int8"}, "snapshot dtype 'int8': use 'native' or one of"),
        ({"snapshot_device": "gpu"}, "snapshot device 'gpu'"),
        ({"snapshot_device": "meta"}, "snapshot device 'meta' keeps no numbers"),
        ({"param_change_thresholds": []}, "param_change_thresholds=\\[\\]"),
        ({"sparse_quality_thresholds": [-1.0]}, "sparse_quality_thresholds"),
        ({"sparse_quality_thresholds": [math.nan]}, "sparse_quality_thresholds"),
        ({"gradient_enabled": "yes"}, "gradient_enabled='yes'"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        AnalysisConfig.from_dict(options)


def test_numbers_of_numpy_are_numbers() -> None:
    config = AnalysisConfig(interval=np.int64(2), sparse_quality_thresholds=np.array([1e-6, 1e-3], np.float32))  # type: ignore[arg-type]
    assert type(config.interval) is int
    assert all(type(threshold) is float for threshold in config.sparse_quality_thresholds)
    *_, metrics = train(ModelAnalysisManager.create(config, strict=True), 3)[1]
    assert {"sparse/kl_at_1e-06", "sparse/kl_at_1e-03"} <= metrics.keys()


def test_a_device_that_is_not_there_is_said_by_name() -> None:
    present = torch.accelerator.current_accelerator()
    absent = "xpu" if present is not None and present.type == "cuda" else "cuda"
    analyzer = ModelAnalysisManager.create(AnalysisConfig(snapshot_device=absent), strict=True)
    with pytest.raises(ValueError, match=f"snapshot device '{absent}' cannot be used here"):
        analyzer.on_optimizer_step(Net())


def test_a_configuration_from_a_dictionary_is_the_same() -> None:
    assert AnalysisConfig.from_dict({"interval": 7, "momentum_enabled": True}) == AnalysisConfig(
        7, momentum_enabled=True
    )


def test_a_configuration_changed_later_does_not_reach_the_manager() -> None:
    config = AnalysisConfig(interval=1)
    analyzer = ModelAnalysisManager.create(config)
    config.interval = 1000
    assert train(analyzer, 2)[1][1]


# harmlessness


def without_a_trace(analyzer: ModelAnalysisManager, **options: Any) -> None:
    plain, _, losses = train(None, 8, **options)
    watched, returned, seen = train(analyzer, 8, **options)
    assert any(returned)
    assert all(map(torch.equal, losses, seen))
    for (name, left), (_, right) in zip(plain.state_dict().items(), watched.state_dict().items(), strict=True):
        assert torch.equal(left, right), name
    assert [m.training for m in plain.modules()] == [m.training for m in watched.modules()]


@pytest.mark.parametrize("clear", [None, True, False])
@pytest.mark.parametrize("handed_over", [True, False])
def test_a_run_is_bit_identical_with_everything_switched_on(clear: bool | None, handed_over: bool) -> None:
    config = AnalysisConfig.comprehensive()
    config.interval, config.loss_landscape_enabled = 2, handed_over  # a forward seen in passing has no targets
    given = {} if handed_over else {"inputs": None}
    without_a_trace(ModelAnalysisManager.create(config, strict=True), clear=clear, **given)


def test_a_failing_metric_costs_a_warning_and_nothing_else() -> None:
    class Broken(MetricComputer):
        def compute(self, **kwargs: Any) -> dict[str, float]:
            raise RuntimeError("no such luck")

    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1)).add_metric(Broken())
    with pytest.warns(ls.ProbeWarning, match=r"Broken failed at step 1(.|\n)*no such luck") as caught:
        without_a_trace(analyzer)
    assert len([w for w in caught if issubclass(w.category, ls.ProbeWarning)]) == 1
    assert train(analyzer, 3)[1][2]["param_change/norm_l2"] > 0


def test_strict_raises_instead() -> None:
    class Broken(MetricComputer):
        def compute(self) -> dict[str, float]:
            raise RuntimeError("no such luck")

    with pytest.raises(RuntimeError, match="no such luck"):
        train(create(interval=1).add_metric(Broken()), 2)


def test_something_that_is_no_model_is_a_warning() -> None:
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1))
    with pytest.warns(ls.ProbeWarning, match="the model is a NoneType"):
        assert analyzer.on_optimizer_step(None) == {}  # type: ignore[arg-type]


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("how", ["reset", "close", "gone"])
def test_no_hook_stays_behind(how: str) -> None:
    gc.collect()
    remove_gone()  # hooks of other tests' sessions
    listeners, globally = len(clipping.listeners), len(_global_optimizer_pre_hooks)
    analyzer = create(interval=2, gradient_enabled=True)
    model, optimizer = Net(), None
    train(analyzer, 5, model=model, inputs=None)
    assert hooks(model) == 1
    optimizer = analyzer._session.subject.optimizers[0]  # type: ignore[union-attr]
    assert optimizer._optimizer_step_pre_hooks
    if how == "gone":
        del analyzer
        gc.collect()
        ls.watch(Net(), None, probes=[ls.Loss()]).close()  # the next session removes those of optimizers
    else:
        getattr(analyzer, how)()
    assert hooks(model) == 0
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert len(clipping.listeners) == listeners
    assert len(_global_optimizer_pre_hooks) == globally


# what metrics need


def test_inputs_that_never_come_are_said_once_and_by_name() -> None:
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1))
    model = Net()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(4):
            nudge(model, seed=seed)  # no forward that could be seen either
            metrics = analyzer.on_optimizer_step(model)
    said = [str(w.message) for w in caught if issubclass(w.category, ls.ProbeWarning)]
    assert len(said) == 1
    assert "SparseQuality is not measured: it needs a batch" in said[0]
    assert "inputs=" in said[0]
    assert "param_change/norm_l2" in metrics
    assert not any(key.startswith("sparse/") for key in metrics)


def test_a_batch_that_cannot_be_read_says_how_to_write_a_task() -> None:
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1))
    model = Net()
    analyzer.on_optimizer_step(model, inputs="text")
    nudge(model)
    with pytest.warns(ls.ProbeWarning, match=r"class MyTask(.|\n)*task=MyTask"):
        assert "param_change/mean" in analyzer.on_optimizer_step(model, inputs="text")


def test_an_empty_batch_is_refused_by_name_and_the_rest_goes_on() -> None:
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1))
    model, empty = Net(), (torch.zeros(0, 10), torch.zeros(0, dtype=torch.long))
    analyzer.on_optimizer_step(model, inputs=empty)
    nudge(model)
    with pytest.warns(ls.ProbeWarning, match="SparseQuality failed(.|\n)*the batch is empty"):
        metrics = analyzer.on_optimizer_step(model, inputs=empty)
    assert metrics["param_change/norm_l2"] > 0


@pytest.mark.parametrize("clear", [None, True, False])
def test_gradients_are_those_of_the_step_though_they_are_cleared_before_the_call(clear: bool | None) -> None:
    model = Net()
    norms: list[float] = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: norms.append(float(p.grad.double().square().sum())))
    analyzer = create(interval=1, sparse_quality_enabled=False, gradient_enabled=True)
    _, returned, _ = train(analyzer, 4, model=model, clear=clear)
    count = len(list(model.parameters()))
    expected = [math.sqrt(sum(norms[i * count : (i + 1) * count])) for i in range(4)]
    assert [m["gradient/norm"] for m in returned[1:]] == pytest.approx(expected[1:], rel=1e-6)
    assert all(m["gradient/variance"] > 0 for m in returned[1:])


def test_gradients_before_and_after_a_clip() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    analyzer = create(interval=1, sparse_quality_enabled=False, gradient_enabled=True)
    for x, y in batches(3):
        nn.functional.cross_entropy(model(x), y).backward()
        total = float(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        optimizer.step()
        optimizer.zero_grad()
        metrics = analyzer.on_optimizer_step(model)
    assert metrics["gradient/norm_before_clip"] == pytest.approx(total, rel=1e-5)
    assert metrics["gradient/norm"] == pytest.approx(0.05, rel=1e-4)


def test_gradients_of_a_step_without_a_torch_optimizer_are_read_where_they_stand() -> None:
    model = Net()
    analyzer = create(interval=1, sparse_quality_enabled=False, gradient_enabled=True)
    for x, y in batches(2):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad
        metrics = analyzer.on_optimizer_step(model)
    expected = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    assert metrics["gradient/norm"] == pytest.approx(expected, rel=1e-6)


def test_gradients_that_are_gone_are_said_by_name() -> None:
    model = Net()
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1, gradient_enabled=True, momentum_enabled=True))
    analyzer.on_optimizer_step(model, inputs=batches(1)[0])
    nudge(model)
    with pytest.warns(ls.ProbeWarning) as caught:
        analyzer.on_optimizer_step(model, inputs=batches(1)[0])
    said = " ".join(str(w.message) for w in caught)
    assert "GradientFlow is not measured: it needs the gradients" in said
    assert "Momentum is not measured: it needs the optimizer" in said


@pytest.mark.parametrize("handed_over", [True, False])
def test_momentum_of_the_optimizer_that_was_given_or_seen(handed_over: bool) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.9))
    analyzer = create(interval=2, sparse_quality_enabled=False, momentum_enabled=True)
    for x, y in batches(5):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        metrics = analyzer.on_optimizer_step(model, optimizer=optimizer if handed_over else None)
    first = torch.cat([optimizer.state[p]["exp_avg"].double().flatten() for p in model.parameters()]) / (1 - 0.8**5)
    assert metrics["momentum/first_moment_norm"] == pytest.approx(float(first.norm()), rel=1e-6)
    assert metrics["momentum/group/group_0/beta1"] == 0.8
    assert -1 <= metrics["momentum/staleness"] <= 1


def test_an_optimizer_of_another_model_is_not_taken_for_this_ones() -> None:
    model, other = Net(), nn.Linear(2, 2)
    analyzer = create(interval=1, sparse_quality_enabled=False, momentum_enabled=True)
    mine, theirs = torch.optim.Adam(model.parameters()), torch.optim.Adam(other.parameters())
    for x, y in batches(2):
        other(torch.ones(1, 2)).sum().backward()
        theirs.step()
        nn.functional.cross_entropy(model(x), y).backward()
        mine.step()
        analyzer.on_optimizer_step(model)
    assert analyzer._session is not None
    assert list(analyzer._session.subject.optimizers) == [mine]


def test_lbfgs_is_left_alone_and_the_rest_goes_on() -> None:
    model = Net()
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1, sparse_quality_enabled=False))
    with pytest.warns(ls.ProbeWarning, match="LBFGS"):
        analyzer.on_optimizer_step(model, optimizer=torch.optim.LBFGS(model.parameters()))
    nudge(model)
    assert analyzer.on_optimizer_step(model)["param_change/norm_l2"] > 0


@pytest.mark.parametrize("clear", [None, True, False])
def test_what_rounding_absorbs_of_half_precision_weights(clear: bool | None) -> None:
    """Steps of about 1e-6 on weights of about 0.1, which bfloat16 can only move by 2⁻⁸ of their size."""

    class Half(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.bfloat16()).float()

    analyzer = create(interval=2, param_change_per_layer=True)
    _, returned, _ = train(
        analyzer, 5, model=Half().bfloat16(), clear=clear,
        make=lambda p: torch.optim.AdamW(p, lr=1e-6, weight_decay=0.1),
    )  # fmt: skip
    for metrics in (m for m in returned if m):
        assert metrics["param_change/absorbed_share"] > 0.9
        assert metrics["param_change/layer_first/absorbed_share"] > 0.9
        assert metrics["param_change/decay_absorbed_share"] == 1
        assert metrics["param_change/visible_share"] < 0.1
        assert "sparse/kl_at_1e-06" in metrics


def test_a_step_that_a_grad_scaler_skips_has_no_gradient() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    analyzer, found = create(interval=1, sparse_quality_enabled=False, gradient_enabled=True), []
    for number, (x, y) in enumerate(batches(4)):
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if number == 2:
            model.last.bias.grad[0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        found.append(analyzer.on_optimizer_step(model))
        optimizer.zero_grad()
    assert ["gradient/norm" in metrics for metrics in found] == [False, True, False, True]
    assert found[2]["param_change/norm_l2"] == 0
    assert 0 < found[1]["gradient/norm"] < 100  # not the scaled one


# metrics of one's own


def test_a_computer_is_given_what_it_names() -> None:
    seen: dict[str, Any] = {}

    class Named(MetricComputer):
        def compute(self, delta: Any, snapshot: Any, old_snapshot: Any, current_snapshot: Any, context: Any) -> Any:
            seen.update(locals())
            return {"mine/largest": max(float(d.abs().max()) for d in delta.values()), "mine/text": "as it is"}

    class ContextOnly(MetricComputer):
        def compute(self, context: AnalysisContext) -> dict[str, float]:
            return {"mine/step": context.step, "mine/rate": context.metadata["rate"]}

    analyzer = create(interval=2).add_metric(Named()).add_metric(ContextOnly())
    model, returned, _ = train(analyzer, 3, rate=0.5)
    metrics = returned[-1]
    assert metrics["mine/largest"] == pytest.approx(metrics["param_change/norm_max"])
    assert (metrics["mine/step"], metrics["mine/rate"], metrics["mine/text"]) == (2, 0.5, "as it is")
    assert torch.equal(seen["snapshot"]["last.weight"], seen["old_snapshot"]["last.weight"])
    assert torch.equal(seen["current_snapshot"]["last.weight"], model.last.weight.detach())
    context = seen["context"]
    assert context.model is model
    assert isinstance(context.optimizer, torch.optim.AdamW)
    assert isinstance(context.inputs, tuple)


def test_what_a_computer_keeps_stays_as_it_was() -> None:
    kept: list[Any] = []

    class Keeps(MetricComputer):
        def compute(self, delta: Any, old_snapshot: Any, current_snapshot: Any) -> dict[str, float]:
            copies = [{name: thing[name] for name in thing} for thing in (delta, old_snapshot, current_snapshot)]
            kept.append(((delta, old_snapshot, current_snapshot), copies))
            return {"l2": delta.norm_l2}

    _, returned, _ = train(create(interval=2).add_metric(Keeps()), 12)
    assert len(kept) == 5
    for things, copies in kept:
        for thing, copy in zip(things, copies, strict=True):
            assert all(torch.equal(thing[name], value) for name, value in copy.items())
    assert all(m["l2"] == m["param_change/norm_l2"] for m in returned if m)


def test_nothing_is_copied_for_those_who_keep_nothing() -> None:
    class Looks(MetricComputer):
        def compute(self, **kwargs: Any) -> dict[str, float]:
            return {"l1": kwargs["delta"].norm_l1}

    analyzer = create(interval=1, sparse_quality_enabled=False).add_metric(Looks())
    train(analyzer, 2)
    assert analyzer._session is not None
    assert analyzer._session._history is not None
    before = analyzer._session._history.kept
    train(analyzer, 3)
    assert analyzer._session._history.kept is before


def test_any_probe_is_a_metric_and_a_class_is_not() -> None:
    @ls.probe()
    def largest(moment: ls.Moment) -> dict[str, Any]:
        return {"weight": max(p.abs().max() for p in moment.model.parameters())}

    _, (_, metrics), _ = train(create(interval=1).add_metric(largest), 2)
    assert metrics["largest/weight"] > 0
    with pytest.raises(TypeError, match=r"write GradientMetrics\(\)"):
        create().add_metric(GradientMetrics)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="derive it from one"):
        create().add_metric("gradient")  # type: ignore[arg-type]


def test_a_metric_that_extends_a_built_in_one_is_called() -> None:
    class More(SparseQualityMetrics):
        def compute(self, **kwargs: Any) -> dict[str, float]:
            found = super().compute(**kwargs)
            return {"more/kl": found["sparse/kl_at_1e-02"], "more/change": kwargs["delta"].norm_l2}

    analyzer = ModelAnalysisManager(AnalysisConfig(interval=1), strict=True).add_metric(More([1e-2]))
    _, (_, metrics), _ = train(analyzer, 2)
    assert metrics["more/kl"] > 0
    assert metrics["more/change"] > 0


def test_a_computer_that_returns_no_dictionary_is_named() -> None:
    class Nothing(MetricComputer):
        def compute(self, **kwargs: Any) -> Any:
            return 3.0

    analyzer = ModelAnalysisManager(AnalysisConfig(interval=1)).add_metric(Nothing())
    with pytest.warns(ls.ProbeWarning, match="Nothing failed(.|\n)*a dictionary of metrics by key"):
        train(analyzer, 2)


def test_metrics_outside_of_a_manager() -> None:
    from learnscope.analysis import ParameterSnapshot

    model, batch = Net(), batches(1)[0]
    before = ParameterSnapshot.from_model(model)
    nudge(model)
    after = ParameterSnapshot.from_model(model)
    change = ParameterChangeMetrics([1e-3]).compute(delta=after - before)
    context = AnalysisContext(model=model, inputs=batch)
    assert change["param_change/norm_l2"] == pytest.approx((after - before).norm_l2)
    assert SparseQualityMetrics([1e-3]).compute(snapshot=before, context=context)["sparse/kl_at_1e-03"] > 0
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    assert GradientMetrics().compute(context=context)["gradient/norm"] > 0
    with pytest.raises(ValueError, match="GradientMetrics needs a model"):
        GradientMetrics().compute()
