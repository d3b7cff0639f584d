"""The probe over adapters in watched runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from scipy import linalg
from torch import Tensor

import learnscope as ls
from learnscope.tensor.adapters.spectrum import DEFICIENT, ZERO
from model.adapters.adapted import ADDED, FAMILIES, RANK, Adapted, adapted, layer_at, scopes, update
from seeds.tiny import language_model

PROBE = "AdapterSpectrum"
FIRST = "model.layers.0.self_attn.q_proj"


def watched(one: Adapted, steps: int = 10, run: Path | None = None, **options: Any) -> ls.Run:
    probe = ls.AdapterSpectrum(**{"every": 5, **options})
    with ls.watch(one.model, one.optimizer, run=run, probes=[probe], strict=True) as w:
        one.train(steps)
    return w.run


def rows(run: ls.Run, name: str, **labels: Any) -> pd.DataFrame:
    """The rows of the last measurement."""
    frame = run.frame(PROBE, name, "module")
    frame = frame[frame.step == frame.step.max()]
    for label, wanted in labels.items():
        frame = frame[frame[label] == wanted]
    return frame.set_index("scope")


@pytest.mark.parametrize("family", [*ADDED, "dora"])
def test_recorded_spectra_are_those_of_the_update(family: str) -> None:
    one = adapted(family)
    # AdaLoRA's allocator prunes after the step that is measured, but not in its first two
    run = watched(one, **({"steps": 2, "every": 2} if family == "adalora" else {}))
    held = run.arrays(PROBE)
    for scope in scopes(one):
        truth = torch.linalg.svdvals(update(one, scope)).numpy()
        found = held[f"singular_values/default/{scope}"]
        np.testing.assert_allclose(found, truth[: len(found)], rtol=1e-5, atol=1e-12)
        assert found[0] > 0
        norms = rows(run, "frobenius_norm")
        assert norms.value[scope] == pytest.approx(float(update(one, scope).norm()), rel=1e-5)
        assert norms.adapter[scope] == "default"
        assert norms.family[scope] == family


@pytest.mark.parametrize("family", FAMILIES)
def test_watching_changes_nothing(family: str) -> None:
    def trained(watching: bool) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
        one = adapted(family)
        if watching:
            with ls.watch(one.model, one.optimizer, probes=[ls.AdapterSpectrum(every=1, merged_update=True)],
                          strict=True):  # fmt: skip
                losses = one.train(6)
        else:
            losses = one.train(6)
        return losses, one.model.state_dict(), torch.get_rng_state()

    plain, seen = trained(False), trained(True)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], seen[0], strict=True))
    assert plain[1].keys() == seen[1].keys()
    assert all(torch.equal(value, seen[1][name]) for name, value in plain[1].items())
    assert torch.equal(plain[2], seen[2])


@pytest.mark.parametrize(("family", "vector"), [("ia3", "ia3_l"), ("layernorm", "weight")])
def test_vectors_are_described_and_their_spectrum_is_null(family: str, vector: str) -> None:
    one = adapted(family)
    run = watched(one)
    for name in ("frobenius_norm", "effective_rank", "top1_sv_ratio", "scaling"):
        frame = rows(run, name)
        assert len(frame) > 0
        assert frame.value.isna().all()
        assert frame.status.str.contains("vector").all()
    for scope, changed in rows(run, "vector_change", vector=vector).value.items():
        layer = layer_at(one, scope)
        tuned = layer.ia3_l["default"] if family == "ia3" else layer.ln_tuning_layers["default"].weight
        v = tuned.detach().double().numpy().ravel()
        assert changed == pytest.approx(np.linalg.norm(v - 1), rel=1e-9)
        assert changed > 0
        for name, expected in {"norm": np.linalg.norm(v), "mean": v.mean(), "std": v.std(), "min": v.min(),
                               "max": v.max()}.items():  # fmt: skip
            assert rows(run, f"vector_{name}", vector=vector).value[scope] == pytest.approx(expected, rel=1e-9)


def test_doras_norms() -> None:
    one = adapted("dora")
    run = watched(one, merged_update=True)
    for scope in scopes(one):
        direction = float((one.base[f"{scope}.weight"] + update(one, scope)).norm())
        magnitude = float(layer_at(one, scope).lora_magnitude_vector["default"].weight.detach().double().norm())
        assert rows(run, "direction_norm").value[scope] == pytest.approx(direction, rel=1e-9)
        assert rows(run, "magnitude_norm").value[scope] == pytest.approx(magnitude, rel=1e-9)
        assert rows(run, "magnitude_direction_ratio").value[scope] == pytest.approx(magnitude / direction, rel=1e-9)
    merged = rows(run, "merged_update_norm").value
    state = one.model.merge_and_unload().state_dict()
    for scope, value in merged.items():
        added = state[f"{scope}.weight"].double() - one.base[f"{scope}.weight"]
        assert value == pytest.approx(float(added.norm()), rel=1e-4)
    assert run.frame(PROBE, "merged_update_norm").shape[0] > 0
    assert watched(adapted("dora")).frame(PROBE, "merged_update_norm").empty


def test_adaloras_importance_is_recorded() -> None:
    one = adapted("adalora")
    run = watched(one)
    held = run.arrays(PROBE)
    sums = rows(run, "importance_sum").value
    for scope in scopes(one):
        scores = held[f"importance_scores/default/{scope}"]
        assert scores.shape == (RANK,)
        assert sums[scope] == pytest.approx(float(scores.astype(np.float64).sum()), rel=1e-6)
        assert rows(run, "allocated_rank").value[scope] <= RANK
    early = watched(adapted("adalora"), steps=1, every=1)
    assert rows(early, "importance_sum").value.isna().all()
    assert rows(early, "importance_sum").status.str.contains("allocator has no scores").all()
    assert (rows(early, "allocated_rank").value == RANK).all()


def test_a_zero_update_is_null_with_its_reason() -> None:
    one = adapted("lora")
    run = ls.audit(one.model, probes=[ls.AdapterSpectrum()])
    assert (rows(run, "frobenius_norm").value == 0).all()
    assert (rows(run, "effective_rank").status == ZERO).all()
    assert rows(run, "left_drift", since="first").status.eq(ZERO).all()


def test_a_deficient_update_says_so() -> None:
    one = adapted("lora")
    for scope in scopes(one):
        layer = layer_at(one, scope)
        layer.lora_B["default"].weight.data[:, 0] = 1.0
    run = ls.audit(one.model, probes=[ls.AdapterSpectrum()])
    assert rows(run, "condition_number").value.isna().all()
    assert (rows(run, "condition_number").status == DEFICIENT).all()
    assert (rows(run, "numerical_rank").value == 1).all()


def test_drift_is_the_angle_to_the_kept_spans() -> None:
    """Against SciPy's angles of the factors' own spans: those of B on the left, of Aᵀ on the right."""
    one = adapted("lora")
    spans: list[dict[str, Tensor]] = []
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterSpectrum(every=2)], strict=True) as w:
        for _ in range(3):
            one.train(2)
            layer = layer_at(one, FIRST)
            spans.append({"left": layer.lora_B["default"].weight.detach().double().clone(),
                          "right": layer.lora_A["default"].weight.detach().double().mT.clone()})  # fmt: skip
    for side in ("left", "right"):
        for since, then in (("previous", 1), ("first", 0)):
            angles = linalg.subspace_angles(spans[then][side].numpy(), spans[2][side].numpy())
            largest = rows(w.run, f"{side}_angle", since=since).value[FIRST]
            drift = rows(w.run, f"{side}_drift", since=since).value[FIRST]
            assert largest == pytest.approx(angles.max(), rel=1e-6)
            assert drift == pytest.approx(math.sqrt((np.sin(angles) ** 2).mean()), rel=1e-6)
            assert largest > 1e-4
    first = w.run.frame(PROBE, "left_drift").query("step == 2")
    assert first.value.isna().all()
    assert first.status.str.contains("no earlier").all()
    assert list(w.run.records(PROBE))[-1].notes["previous_step"] == 4


def test_what_does_not_fit_has_no_drift() -> None:
    run = watched(adapted("lora"), memory_mb=0)
    assert rows(run, "left_drift").status.str.contains("memory_mb=0").all()
    assert rows(run, "frobenius_norm").value.notna().all()
    assert watched(adapted("lora"), drift=False).frame(PROBE, "left_drift").empty


def test_drift_goes_on_after_resuming(tmp_path: Path) -> None:
    whole = watched(adapted("lora"), steps=6, every=2)
    one = adapted("lora")
    with ls.watch(one.model, one.optimizer, run=tmp_path / "r", probes=[ls.AdapterSpectrum(every=2)], strict=True) as w:
        one.train(4)
        w.save_state()
    expected = list(whole.records(PROBE))[1].rows()
    again = list(ls.open_run(tmp_path / "r").records(PROBE))[1].rows()
    assert [row.value for row in expected] == [row.value for row in again]
    options: dict[str, Any] = {"probes": [ls.AdapterSpectrum(every=2)], "strict": True, "resume": True}
    with ls.watch(one.model, one.optimizer, run=tmp_path / "r", **options):
        one.train(2)
    resumed = ls.open_run(tmp_path / "r")
    assert rows(resumed, "left_drift", since="first").value.notna().all()
    assert list(resumed.records(PROBE))[-1].notes["first_step"] == 2


def test_several_adapters_have_rows_of_their_own() -> None:
    one = adapted("lora")
    one.model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    run = watched(one)
    assert len(rows(run, "rank", adapter="default")) == len(scopes(one))
    second = rows(run, "rank", adapter="second")
    assert second.value.tolist() == [2, 2]
    assert rows(run, "active", adapter="second").value.tolist() == [0, 0]
    for scope in second.index:
        layer = layer_at(one, scope)
        product = layer.lora_B["second"].weight.double() @ layer.lora_A["second"].weight.double()
        truth = torch.linalg.svdvals(layer.scaling["second"] * product.detach())[:2].numpy()
        np.testing.assert_allclose(run.arrays(PROBE)[f"singular_values/second/{scope}"], truth, rtol=1e-5)


def test_a_family_that_is_not_known_is_named_and_recorded() -> None:
    model = peft.get_peft_model(language_model(), peft.LoHaConfig(r=2, target_modules=["q_proj"]))
    with pytest.warns(ls.ProbeWarning, match="does not know loha"):
        run = ls.audit(model, probes=[ls.AdapterSpectrum()])
    (record,) = run.records(PROBE)
    assert record.notes["unknown"] == {"loha": [FIRST, FIRST.replace("0", "1")]}
    assert record.tables == []


def test_a_model_without_adapters_is_told_so() -> None:
    model = language_model()
    with pytest.raises(ls.AdapterError, match="get_peft_model"):
        ls.audit(model, probes=[ls.AdapterSpectrum()], strict=True)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="tolerance"):
        ls.AdapterSpectrum(tolerance=1.0)
    with pytest.raises(ValueError, match="memory_mb"):
        ls.AdapterSpectrum(memory_mb=-1)
