"""Gradient norms of the parts of adapters, against float64 norms of the parameters' own gradients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import learnscope as ls
from learnscope.model.selection import spread
from model.adapters.adapted import FAMILIES, Adapted, adapted, scopes
from probes.reference import array, norm
from seeds.tiny import language_model, token_batches

PROBE = "AdapterGradients"
FIRST = "model.layers.0.self_attn.q_proj"
PREFIX = "base_model.model."
COMPONENTS = {
    "dora": {"lora_A", "lora_B", "magnitude"},
    "adalora": {"lora_A", "lora_B", "lora_E"},
    "vera": {"lambda_b", "lambda_d"},
    "ia3": {"ia3_l"},
    "layernorm": {"weight"},
}
SPELT = {"lora_magnitude_vector": "magnitude", "vera_lambda_b": "lambda_b", "vera_lambda_d": "lambda_d"}
Key = tuple[str, str]
Found = dict[str, dict[Key, Tensor]]


def part_of(name: str) -> Key:
    """(module, component) of a parameter of the adapted Llamas, written down by hand from PEFT's names."""
    path = name.removeprefix(PREFIX).split(".")
    if "ln_tuning_layers" in path:
        return ".".join(path[: path.index("ln_tuning_layers")]), path[-1]
    at = next(i for i, part in enumerate(path) if part.startswith(("lora_", "vera_lambda", "ia3_l")))
    return ".".join(path[:at]), SPELT.get(path[at], path[at])


def layer_of(scope: str) -> str:
    return ".".join(scope.split(".")[:3]) if scope.startswith("model.layers.") else scope


def taken(model: nn.Module) -> dict[Key, Any]:
    """Float64 copies of the gradients of all adapters."""
    return {part_of(name): array(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def backward(one: Adapted, batches: int = 1, factor: float = 1.0) -> None:
    for batch in token_batches(batches):
        (one.model(**batch).loss * factor).backward()


def last(run: ls.Run, kind: str, **labels: str) -> pd.DataFrame:
    frame = run.frame(PROBE, "norm", kind)
    frame = frame[frame.step == frame.step.max()]
    for label, wanted in {"stage": "stepped", **labels}.items():
        frame = frame[frame[label] == wanted]
    return frame


def found(run: ls.Run, kind: str, **labels: str) -> dict[Key, float]:
    frame = last(run, kind, **labels)
    return dict(zip(zip(frame.scope, frame.component, strict=True), frame.value, strict=True))


def check(run: ls.Run, grads: dict[Key, Any], **labels: str) -> None:
    """Every kind of row against the same gradients."""
    keys: dict[str, Callable[[str], str]] = {
        "module": lambda scope: scope,
        "layer": layer_of,
        "component": lambda scope: scope.rpartition(".")[2],
        "model": lambda _: "model",
    }
    for kind, key in keys.items():
        groups: dict[Key, list[Any]] = defaultdict(list)
        for (scope, component), grad in grads.items():
            groups[key(scope), component].append(grad)
        expected = {group: norm(inside) for group, inside in groups.items()}
        assert found(run, kind, **labels) == pytest.approx(expected, rel=1e-6), kind


def measured(
    one: Adapted, before_step: Callable[[], Any] = lambda: None, **options: Any
) -> tuple[ls.Run, dict[Key, Any]]:
    """A second step, so that B is no longer 0, its gradients, and the run that saw it."""
    grads: dict[Key, Any] = {}
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(**{"every": 1, **options})], strict=True) as w:
        for _ in range(2):
            one.optimizer.zero_grad()
            backward(one)
            grads = taken(one.model)
            before_step()
            one.optimizer.step()
    return w.run, grads


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_of_every_family(family: str) -> None:
    one = adapted(family)
    run, grads = measured(one)
    frozen = {(scope, "lora_A"): math.nan for scope in scopes(one)} if family == "lora-fa" else {}
    modules = found(run, "module")
    assert {key for key, value in modules.items() if math.isnan(value)} == frozen.keys()
    if family == "lora-fa":
        rows = last(run, "module", component="lora_A")
        assert (rows.status == "frozen").all()
        assert last(run, "model", component="lora_A").status.tolist() == ["frozen"]
    else:
        check(run, grads)
    assert {key: value for key, value in modules.items() if key not in frozen} == pytest.approx(
        {key: norm([grad]) for key, grad in grads.items()}, rel=1e-6
    )
    assert min(value for key, value in modules.items() if key not in frozen) > 0
    assert {component for _, component in modules} == COMPONENTS.get(family, {"lora_A", "lora_B"})
    rows = last(run, "module")
    assert set(rows.family) == {family}
    assert set(rows.adapter) == {"default"}


def test_the_first_gradient_of_a_is_zero_and_says_so() -> None:
    """B begins with zeros, so that A has no gradient but zeros: measured, and 0.0."""
    one = adapted("lora")
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        one.train(1)
    for kind in ("module", "layer", "component", "model"):
        assert (last(w.run, kind, component="lora_A").value == 0.0).all()
        assert (last(w.run, kind, component="lora_B").value > 0).all()


def test_a_clip_by_norm_is_seen() -> None:
    one = adapted("lora")
    clipped: dict[Key, Any] = {}

    def clip() -> None:
        clip_grad_norm_(one.model.parameters(), 1e-3)
        clipped.update(taken(one.model))

    run, grads = measured(one, clip)
    check(run, grads, stage="before_clip")
    check(run, clipped, stage="stepped")
    assert found(run, "model")["model", "lora_B"] <= 1e-3
    assert measured(adapted("lora"))[0].frame(PROBE, "norm").stage.unique().tolist() == ["stepped"]


def test_loss_scaling_is_divided_out() -> None:
    """A fused optimizer under a GradScaler is handed the scaled gradients and the scale."""
    one = adapted("lora")
    one.train(1)
    one.optimizer = torch.optim.AdamW([p for p in one.model.parameters() if p.requires_grad], lr=1e-3, fused=True)
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        backward(one, factor=1024.0)
        scaled = taken(one.model)
        one.optimizer.grad_scale, one.optimizer.found_inf = torch.tensor(1024.0), torch.tensor(0.0)  # type: ignore[attr-defined]
        one.optimizer.step()
    check(w.run, {key: grad / 1024.0 for key, grad in scaled.items()})
    assert min(norm([grad]) for grad in scaled.values()) > 0


def test_accumulated_gradients_are_those_of_the_step() -> None:
    one = adapted("dora")
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        backward(one, batches=3)
        grads = taken(one.model)
        one.optimizer.step()
    check(w.run, grads)


def test_what_is_not_finite_is_null() -> None:
    one = adapted("lora")
    name = f"{PREFIX}{FIRST}.lora_B.default.weight"

    def spoil() -> None:
        grad = dict(one.model.named_parameters())[name].grad
        assert grad is not None
        grad[0, 0] = math.nan

    one.train(1)
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        backward(one)
        grads = taken(one.model)
        spoil()
        one.optimizer.step()
    run = w.run
    rows = last(run, "module", component="lora_B").set_index("scope")
    assert math.isnan(rows.value[FIRST])
    assert rows.status[FIRST] == "nan"
    others = rows.drop(FIRST)
    assert dict(others.value) == pytest.approx(
        {scope: norm([grads[scope, "lora_B"]]) for scope in others.index}, rel=1e-6
    )
    assert last(run, "model", component="lora_B").status.tolist() == ["nan"]
    assert last(run, "layer", component="lora_B").set_index("scope").status.isna().to_dict() == {
        "model.layers.0": False, "model.layers.1": True,
    }  # fmt: skip
    assert last(run, "model", component="lora_A").value.notna().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_watching_changes_nothing(family: str) -> None:
    def trained(watching: bool) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
        one = adapted(family)
        if watching:
            probes = [ls.AdapterGradients(every=1, adapters_only=False)]
            with ls.watch(one.model, one.optimizer, probes=probes, strict=True):
                losses = one.train(4)
        else:
            losses = one.train(4)
        return losses, one.model.state_dict(), torch.get_rng_state()

    plain, seen = trained(False), trained(True)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], seen[0], strict=True))
    assert all(torch.equal(value, seen[1][name]) for name, value in plain[1].items())
    assert torch.equal(plain[2], seen[2])


def test_an_inactive_adapter_is_null_with_its_reason_and_comes_back() -> None:
    one = adapted("lora")
    one.model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    one.optimizer = torch.optim.SGD(one.model.parameters(), lr=1e-3)
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        one.train(1)
        assert last(w.run, "module", adapter="second").status.unique().tolist() == ["the adapter second is not active"]
        assert last(w.run, "module", adapter="default").value.notna().all()
        one.model.set_adapter("second")
        one.train(1)
        assert last(w.run, "module", adapter="default").status.unique().tolist() == [
            "the adapter default is not active"
        ]
        assert (last(w.run, "module", adapter="second").value > 0).all()
        assert len(last(w.run, "module", adapter="second")) == 4
        with one.model.disable_adapter():
            one.optimizer.step()
    assert last(w.run, "model").status.unique().tolist() == ["adapters are disabled"]


def test_a_merged_adapter_says_so() -> None:
    one = adapted("lora")
    one.model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["v_proj"]))
    one.model.merge_adapter(["default"])
    one.optimizer = torch.optim.SGD([p for p in one.model.parameters() if p.requires_grad], lr=1e-3)
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        one.optimizer.step()
    assert last(w.run, "module", adapter="default").status.str.contains("merged into the weight").all()


def test_a_merged_norm_is_the_one_in_use() -> None:
    """Merging exchanges a tuned norm with the one it began with, and goes on training it."""
    one = adapted("layernorm")
    one.model.merge_adapter()
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        backward(one)
        norms = {
            scope: norm([one.model.get_submodule(f"{PREFIX}{scope}").base_layer.weight.grad])
            for scope in ("model.layers.0.input_layernorm", "model.layers.1.input_layernorm", "model.norm")
        }
        one.optimizer.step()
    assert found(w.run, "module") == pytest.approx(
        {(scope, "weight"): value for scope, value in norms.items()}, rel=1e-6
    )
    assert min(norms.values()) > 0


def test_a_shared_parameter_has_one_row_with_a_number() -> None:
    one = adapted("lora")
    later = FIRST.replace("layers.0", "layers.1")
    first, second = (one.model.get_submodule(f"{PREFIX}{scope}") for scope in (FIRST, later))
    second.lora_A["default"].weight = first.lora_A["default"].weight
    one.optimizer = torch.optim.SGD([p for p in one.model.parameters() if p.requires_grad], lr=1e-3)
    run, grads = measured(one)
    assert (later, "lora_A") not in grads
    rows = last(run, "module", component="lora_A").set_index("scope")
    assert rows.value[FIRST] == pytest.approx(norm([grads[FIRST, "lora_A"]]), rel=1e-6)
    assert rows.status[later] == f"shares its parameter with {FIRST}"
    total = norm([grad for (_, component), grad in grads.items() if component == "lora_A"])
    assert found(run, "model")["model", "lora_A"] == pytest.approx(total, rel=1e-6)
    assert last(run, "module", component="lora_B").value.notna().all()


def test_embeddings_and_biases_of_adapters() -> None:
    model = peft.get_peft_model(
        language_model(), peft.LoraConfig(r=2, target_modules=["embed_tokens", "q_proj"], init_lora_weights=False)
    )
    biased = peft.get_peft_model(
        language_model(), peft.LoraConfig(r=2, target_modules=["q_proj"], lora_bias=True, init_lora_weights=False)
    )  # fmt: skip
    for adapted_model, scope, wanted in (
        (model, "model.embed_tokens", {"lora_A": "lora_embedding_A.default", "lora_B": "lora_embedding_B.default"}),
        (biased, FIRST, {"lora_A": "lora_A.default.weight", "lora_B": "lora_B.default.weight",
                         "lora_B.bias": "lora_B.default.bias"}),
    ):  # fmt: skip
        optimizer = torch.optim.SGD([p for p in adapted_model.parameters() if p.requires_grad], lr=1e-3)
        with ls.watch(adapted_model, optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
            adapted_model(**token_batches(1)[0]).loss.backward()
            optimizer.step()
        named = dict(adapted_model.named_parameters())
        for component, name in wanted.items():
            value = found(w.run, "module")[scope, component]
            assert value == pytest.approx(norm([named[f"{PREFIX}{scope}.{name}"].grad]), rel=1e-6)
            assert value > 0


def test_other_trained_parameters_have_rows_if_asked() -> None:
    plain = language_model()
    model = peft.get_peft_model(
        plain, peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], init_lora_weights=False)
    )
    model.base_model.model.model.norm.weight.requires_grad_(True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    probes = [ls.AdapterGradients(every=1), ls.AdapterGradients(every=1, adapters_only=False)]
    with ls.watch(model, optimizer, probes=probes, strict=True) as w:
        model(**token_batches(1)[0]).loss.backward()
        optimizer.step()
    only, wide = w.run.frame("AdapterGradients", "norm", "module"), w.run.frame("AdapterGradients_2", "norm", "module")
    assert set(only.family) == {"lora"}
    rest = wide[wide.family == "none"].set_index("scope")
    named = dict(model.named_parameters())
    head, last_norm = (
        named[f"{PREFIX}{name}.weight"].grad for name in ("lm_head.modules_to_save.default", "model.norm")
    )
    assert dict(rest.value) == pytest.approx({"lm_head": norm([head]), "model.norm": norm([last_norm])}, rel=1e-6)
    assert dict(rest.adapter) == {"lm_head": "default", "model.norm": "none"}
    assert set(rest.component) == {"weight"}


def test_a_model_without_adapters() -> None:
    model = language_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with pytest.raises(ls.AdapterError, match="get_peft_model"):
        ls.watch(model, optimizer, probes=[ls.AdapterGradients()])
    with ls.watch(model, optimizer, probes=[ls.AdapterGradients(every=1, adapters_only=False)], strict=True) as w:
        model(**token_batches(1)[0]).loss.backward()
        optimizer.step()
    rows = last(w.run, "module", family="none")
    assert len(rows) == len(list(model.parameters()))
    assert found(w.run, "model")["model", "weight"] == pytest.approx(
        norm([p.grad for p in model.parameters()]), rel=1e-6
    )


def test_families_that_are_not_known_are_told_by_their_names() -> None:
    model = peft.get_peft_model(language_model(), peft.LoHaConfig(r=2, target_modules=["q_proj"], init_weights=False))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with ls.watch(model, optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        model(**token_batches(1)[0]).loss.backward()
        optimizer.step()
    rows = last(w.run, "module", family="loha")
    assert len(rows) == 8
    named = dict(model.named_parameters())
    for row in rows.itertuples():
        grad = named[f"{PREFIX}{row.scope}.{row.component}.default"].grad
        assert row.value == pytest.approx(norm([grad]), rel=1e-6)


class Shifted(nn.Module, BaseTunerLayer):
    """An adapter of a family that nobody knows, by its class or by the names of its parameters."""

    adapter_layer_names = ("shift_of",)

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer, self.shift_of = base, nn.ParameterDict({"default": torch.zeros(16)})

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.shift_of["default"]


def test_what_is_not_known_at_all_is_warned_of_once_and_noted() -> None:
    model = language_model()
    model.model.layers[0].self_attn.o_proj = Shifted(model.model.layers[0].self_attn.o_proj)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        pytest.warns(ls.ProbeWarning, match="AdapterGradients does not know") as warned,
        ls.watch(model, optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w,
    ):
        for _ in range(2):
            model(**token_batches(1)[0]).loss.backward()
            optimizer.step()
    assert len([one for one in warned if one.category is ls.ProbeWarning]) == 1
    for record in w.run.records(PROBE):
        assert list(record.notes["unknown"].values()) == [["model.layers.0.self_attn.o_proj"]]
        assert record.tables == []


def test_prompts_are_measured_too() -> None:
    model = peft.get_peft_model(language_model(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with ls.watch(model, optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        model(**token_batches(1)[0]).loss.backward()
        optimizer.step()
    (row,) = last(w.run, "module").itertuples()
    assert (row.family, row.component) == ("PROMPT_TUNING", "prompt_encoder")
    assert row.value == pytest.approx(norm([model.prompt_encoder["default"].embedding.weight.grad]), rel=1e-6)


def test_few_layers_of_many() -> None:
    def run(**options: Any) -> ls.Run:
        torch.manual_seed(0)
        model = peft.get_peft_model(
            language_model(num_hidden_layers=6),
            peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False),
        )
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        with ls.watch(model, optimizer, probes=[ls.AdapterGradients(every=1, **options)], strict=True) as w:
            model(**token_batches(1)[0]).loss.backward()
            optimizer.step()
        return w.run

    whole, few = run(), run(max_layers=3)
    chosen = {"model.layers.0", "model.layers.3", "model.layers.5"}
    assert set(last(few, "layer").scope) == chosen
    assert set(last(few, "module").scope) == {f"{layer}.self_attn.q_proj" for layer in chosen}
    assert found(few, "layer") == {key: value for key, value in found(whole, "layer").items() if key[0] in chosen}
    assert found(few, "model") == found(whole, "model")
    assert found(few, "component") == found(whole, "component")
    assert set(last(run(max_layers=1), "layer").scope) == {"model.layers.2"}
    with pytest.raises(ValueError, match="max_layers"):
        ls.AdapterGradients(max_layers=0)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 32])
def test_layers_are_spread_evenly(count: int) -> None:
    layers = [f"h.{i}" for i in range(count)]
    assert spread(layers, None) == layers
    assert spread([*layers, *layers], count + 1) == layers
    for most in range(2, count + 1):
        places = np.array([int(layer.split(".")[1]) for layer in spread(layers, most)])
        assert len(places) == most
        assert (places[0], places[-1]) == (0, count - 1)
        gaps = np.diff(places)
        assert gaps.min() >= 1
        assert gaps.max() - gaps.min() <= 1
