"""Updates beside the weights they change, against float64 NumPy on the plain weights of before."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from numpy.typing import NDArray
from peft.tuners.lora.intruders import reduce_intruder_dimension
from scipy import linalg
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import learnscope as ls
from learnscope.model.adapters.extras import MERGED
from learnscope.tensor.adapters.subspace import INTRUDERS, SIMILARITY
from model.adapters.adapted import ADDED, Adapted, adapted, layer_at, scopes, update
from seeds.tiny import language_model, token_batches

PROBE = "AdapterSpectrum"
FIRST = "model.layers.0.self_attn.q_proj"
Matrix = NDArray[np.float64]


def rows(run: ls.Run, name: str) -> pd.DataFrame:
    frame = run.frame(PROBE, name, "module")
    return frame[frame.step == frame.step.max()].set_index("scope")


def audited(one: Adapted, **options: Any) -> ls.Run:
    return ls.audit(one.model, probes=[ls.AdapterSpectrum(**options)], strict=True)


def enlarged(one: Adapted, factor: float = 30.0) -> Adapted:
    """Large random updates, so that some directions are new."""
    generator = torch.Generator().manual_seed(8)
    for scope in scopes(one):
        weight = layer_at(one, scope).lora_B["default"].weight
        weight.data = factor * torch.randn(weight.shape, generator=generator)
    return one


def weight_of(one: Adapted, scope: str) -> Matrix:
    found: Matrix = one.base[f"{scope}.weight"].numpy()
    return found


def tuned(one: Adapted, scope: str) -> Matrix:
    """The merged weight, from the formulas of the papers."""
    whole = weight_of(one, scope) + update(one, scope).numpy()
    if one.family != "dora":
        return whole
    magnitude = layer_at(one, scope).lora_magnitude_vector["default"].weight.detach().double().numpy()
    found: Matrix = magnitude.reshape(-1, 1) * whole / np.linalg.norm(whole, axis=1, keepdims=True)
    return found


@pytest.mark.parametrize("family", [*ADDED, "dora"])
def test_the_update_as_a_share_of_the_weight(family: str) -> None:
    one = adapted(family)
    one.train(2)
    found = rows(audited(one), "relative_norm").value
    assert set(found.index) == set(scopes(one))
    for scope, value in found.items():
        truth = np.linalg.norm(update(one, scope).numpy()) / np.linalg.norm(weight_of(one, scope))
        assert value == pytest.approx(truth, rel=1e-5)
        assert value > 0


def test_the_weight_is_read_once_and_is_that_of_the_beginning(tmp_path: Path) -> None:
    one = adapted("lora")
    probes = [ls.AdapterSpectrum(every=1)]
    with ls.watch(one.model, one.optimizer, run=tmp_path / "r", probes=probes, strict=True) as w:
        one.train(1)
        w.save_state()
    for scope in scopes(one):
        layer_at(one, scope).base_layer.weight.data.zero_()
    with ls.watch(one.model, one.optimizer, run=tmp_path / "r", probes=probes, strict=True, resume=True):
        one.train(1)
    found = rows(ls.open_run(tmp_path / "r"), "relative_norm")
    assert set(found.step) == {2}
    for scope, value in found.value.items():
        truth = np.linalg.norm(update(one, scope).numpy()) / np.linalg.norm(weight_of(one, scope))
        assert value == pytest.approx(truth, rel=1e-5)


def test_a_merged_weight_is_not_taken_for_the_first() -> None:
    one = adapted("lora")
    one.train(2)
    before = rows(audited(one), "relative_norm").value
    one.model.merge_adapter()
    found = rows(audited(one), "relative_norm")
    assert found.value.isna().all()
    assert (found.status == MERGED).all()
    one.model.unmerge_adapter()
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterSpectrum(every=1)], strict=True) as w:
        one.optimizer.step()  # no gradients: nothing moves
        one.model.merge_adapter()
        one.optimizer.step()
    assert dict(rows(w.run, "relative_norm").value) == pytest.approx(dict(before), rel=1e-5)


def test_weights_that_give_no_share_say_why() -> None:
    one = adapted("lora")
    one.train(1)
    layer_at(one, FIRST).base_layer.weight.data.zero_()
    later = FIRST.replace("0", "1")
    layer_at(one, later).base_layer.weight.requires_grad_(True)
    broken = "model.layers.0.mlp.down_proj"
    layer_at(one, broken).base_layer.weight.data[0, 0] = math.nan
    lost = "model.layers.1.mlp.down_proj"
    layer_at(one, lost).lora_A["default"].weight.data[0, 0] = math.inf
    found = rows(audited(one), "relative_norm")
    assert found.status[FIRST] == "its weight is zero"
    assert "trained as well" in found.status[later]
    assert "not finite" in found.status[broken]
    assert "factors" in found.status[lost]
    assert found.value[[FIRST, later, broken, lost]].isna().all()
    assert found.value.drop([FIRST, later, broken, lost]).notna().all()
    vectors = rows(audited(adapted("ia3")), "relative_norm")
    assert vectors.value.isna().all()
    assert vectors.status.str.contains("vector").all()


def expected_intruders(before: Matrix, after: Matrix) -> tuple[int, float]:
    known = np.linalg.svd(before, full_matrices=False)[0]
    leading = np.linalg.svd(after, full_matrices=False)[0][:, :INTRUDERS]
    best = np.abs(known.T @ leading).max(0)
    return int((best < SIMILARITY).sum()), float(best.min())


@pytest.mark.parametrize("family", ["lora", "pissa", "dora"])
def test_directions_that_the_weight_had_not(family: str) -> None:
    """The tuned weight is rebuilt here by the papers' formulas; DoRA's with its magnitude."""
    one = enlarged(adapted(family))
    run = audited(one, intruders=True)
    counts, matches = rows(run, "intruder_dimensions"), rows(run, "intruder_similarity")
    for scope in scopes(one):
        count, smallest = expected_intruders(weight_of(one, scope), tuned(one, scope))
        assert counts.value[scope] == count
        assert matches.value[scope] == pytest.approx(smallest, rel=1e-3)
        assert (counts.k[scope], counts.epsilon[scope]) == (INTRUDERS, SIMILARITY)
    assert counts.value.max() > 0, "the test itself: some are new"
    assert audited(one).frame(PROBE, "intruder_dimensions").empty


def test_intruders_once_at_the_end() -> None:
    one = enlarged(adapted("lora"))
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterSpectrum(at="end", intruders=True)], strict=True) as w:
        one.train(3)
    frame = w.run.frame(PROBE, "intruder_dimensions", "module")
    assert set(frame.step) == {3}
    assert dict(frame.set_index("scope").value) == {
        scope: expected_intruders(weight_of(one, scope), tuned(one, scope))[0] for scope in scopes(one)
    }


def test_intruders_without_an_answer_say_why() -> None:
    one = adapted("lora")
    layer_at(one, FIRST).lora_A["default"].weight.data[0, 0] = math.nan
    found = rows(audited(one, intruders=True), "intruder_dimensions")
    assert "not finite" in found.status[FIRST]
    assert found.value.drop(FIRST).eq(0).all(), "nothing has moved: every direction is the weight's own"
    vectors = rows(audited(adapted("ia3"), intruders=True), "intruder_dimensions")
    assert vectors.status.str.contains("vector").all()
    one.model.merge_adapter()
    assert (rows(audited(one, intruders=True), "intruder_similarity").status == MERGED).all()


def test_doras_whole_update() -> None:
    one = enlarged(adapted("dora"), 0.1)
    run = audited(one, merged_update=True)
    held = run.arrays(PROBE)
    for scope in scopes(one):
        added = tuned(one, scope) - weight_of(one, scope)
        s = np.linalg.svd(added, compute_uv=False)
        share = s / s.sum()
        expected = {
            "norm": np.linalg.norm(added),
            "largest_sv": s[0],
            "stable_rank": (s**2).sum() / s[0] ** 2,
            "nuclear_norm": s.sum(),
            "effective_rank": math.exp(-(share * np.log(share)).sum()),
        }
        for name, value in expected.items():
            assert rows(run, f"merged_update_{name}").value[scope] == pytest.approx(value, rel=1e-6), name
        np.testing.assert_allclose(held[f"merged_singular_values/default/{scope}"], s, rtol=1e-6, atol=1e-9 * s[0])
        assert np.linalg.matrix_rank(added) > 4, "the test itself: a magnitude makes the update's rank full"
    assert not any("merged" in name for name in audited(one).arrays(PROBE))
    one.model.merge_adapter()
    assert rows(audited(one, merged_update=True), "merged_update_largest_sv").status.str.contains("merged").all()


def test_drift_of_all_modules_with_ranks_that_change() -> None:
    """Against SciPy's angles: shapes that differ, and one update that has a lower rank at first."""
    one = adapted("lora")
    one.train(1)
    thin = layer_at(one, FIRST)
    thin.lora_B["default"].weight.data[:, 2:] = 0
    spans: list[dict[str, tuple[Tensor, Tensor]]] = []
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterSpectrum(every=1)], strict=True) as w:
        for _ in range(3):
            if not spans:
                one.optimizer.step()  # no gradients: nothing moves
            else:
                one.train(1)
            spans.append({scope: directions(one, scope) for scope in scopes(one)})
    assert spans[0][FIRST][0].shape[1] == 2
    assert spans[2][FIRST][0].shape[1] == 4
    frame = w.run.frame(PROBE)
    frame = frame[frame.step == 3]
    for scope in scopes(one):
        for number, side in enumerate(("left", "right")):
            for since, then in (("previous", 1), ("first", 0)):
                angles = linalg.subspace_angles(spans[then][scope][number].numpy(), spans[2][scope][number].numpy())
                found = frame[(frame.scope == scope) & (frame.since == since)].set_index("name").value
                assert found[f"{side}_angle"] == pytest.approx(angles.max(), rel=1e-6, abs=1e-9)
                drift = math.sqrt((np.sin(angles) ** 2).mean())
                assert found[f"{side}_drift"] == pytest.approx(drift, rel=1e-6, abs=1e-9)


def directions(one: Adapted, scope: str) -> tuple[Tensor, Tensor]:
    """Left and right singular vectors of the update, built outright."""
    u, s, v = torch.linalg.svd(update(one, scope), full_matrices=False)
    rank = int((s > 1e-6 * s[0]).sum())
    return u[:, :rank], v[:rank].mT


def test_few_layers_of_many() -> None:
    torch.manual_seed(0)
    model = peft.get_peft_model(
        language_model(num_hidden_layers=5), peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    whole = ls.audit(model, probes=[ls.AdapterSpectrum()], strict=True)
    few = ls.audit(model, probes=[ls.AdapterSpectrum(max_layers=3)], strict=True)
    chosen = [f"model.layers.{i}.self_attn.q_proj" for i in (0, 2, 4)]
    assert list(rows(few, "largest_sv").index) == chosen
    assert dict(rows(few, "largest_sv").value) == dict(rows(whole, "largest_sv").value[chosen])
    assert set(few.arrays(PROBE)) == {f"singular_values/default/{scope}" for scope in chosen}
    with pytest.raises(ValueError, match="max_layers"):
        ls.AdapterSpectrum(max_layers=True)


def test_a_look_at_weights_leaves_no_trace() -> None:
    def trained(**options: Any) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
        one = adapted("dora")
        probes = [ls.AdapterSpectrum(every=1, **options)] if options else []
        with ls.watch(one.model, one.optimizer, probes=probes, strict=True):
            losses = one.train(3)
        return losses, one.model.state_dict(), torch.get_rng_state()

    plain, seen = trained(), trained(intruders=True, merged_update=True)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], seen[0], strict=True))
    assert all(torch.equal(value, seen[1][name]) for name, value in plain[1].items())
    assert torch.equal(plain[2], seen[2])


class Convolved(nn.Module):
    """A convolution and an embedding, whose weights do not lie as a linear layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.head = nn.Embedding(19, 6), nn.Conv1d(6, 5, 3), nn.Linear(5, 2)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.conv(self.embed(ids).mT).mean(2))
        return found


def test_convolutions_and_embeddings() -> None:
    torch.manual_seed(3)
    plain = Convolved()
    before = {name: value.detach().double().numpy().copy() for name, value in plain.state_dict().items()}
    config = peft.LoraConfig(r=2, target_modules=["embed", "conv"], init_lora_weights=False)
    model = peft.get_peft_model(plain, config)
    assert model(token_batches(1)[0]["input_ids"]).shape == (2, 2)
    run = ls.audit(model, probes=[ls.AdapterSpectrum(intruders=True)], strict=True)
    merged = model.merge_and_unload().state_dict()
    for scope in ("embed", "conv"):
        old = before[f"{scope}.weight"]
        new = merged[f"{scope}.weight"].double().numpy()
        share = np.linalg.norm(new - old) / np.linalg.norm(old)
        assert rows(run, "relative_norm").value[scope] == pytest.approx(share, rel=1e-5)
        sides = [one.reshape(len(one), -1) for one in (old, new)]  # as they are stored
        count, smallest = expected_intruders(*sides)
        assert rows(run, "intruder_dimensions").value[scope] == count
        assert rows(run, "intruder_similarity").value[scope] == pytest.approx(smallest, rel=1e-3)


class ThreeLayouts(nn.Module):
    """Weights as [outputs, inputs], [inputs, outputs] and [vocabulary, dimensions]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.turned, self.head = nn.Embedding(40, 24), Conv1D(36, 24), nn.Linear(36, 18)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.turned(self.embed(ids)))
        return found


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_intruders_are_those_that_peft_counts(seed: int) -> None:
    """`reduce_intruder_dimension` of PEFT 0.21 says how many of the ten leading vectors it takes for intruders."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=12, lora_alpha=30, target_modules=["embed", "turned", "head"], init_lora_weights=False)
    model = peft.get_peft_model(ThreeLayouts(), config)
    found = rows(ls.audit(model, probes=[ls.AdapterSpectrum(intruders=True)], strict=True), "intruder_dimensions").value
    said: list[str] = []
    reduce_intruder_dimension(model, top_k=INTRUDERS, threshold_epsilon=SIMILARITY, logging_sink=said.append)
    counts = [line.removeprefix("base_model.model.").split(": ", 1) for line in said if ": " in line]
    expected = {name: 0 if text == "No intruders" else int(text.removeprefix("Intruders: ")) for name, text in counts}
    assert dict(found) == expected
    assert max(expected.values()) > 0, "the test itself: some are new"
