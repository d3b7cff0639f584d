"""Ranks that were tried: adapters cut to fewer directions, against weights that are cut outright."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope.model.adapters.truncation import ranks_all, ranks_each
from learnscope.probes.adapters.adapter_truncation import NOTHING
from model.adapters.adapted import ADDED, RANK, Adapted, adapted, layer_at, scopes, update
from seeds.tiny import language_model, token_batches

PROBE = "AdapterTruncation"
FIRST = "model.layers.0.self_attn.q_proj"
BASED = [family for family in ADDED if family != "vera"]


def watched(one: Adapted, steps: int = 10, **options: Any) -> ls.Run:
    probe = ls.AdapterTruncation(**options)
    with ls.watch(one.model, one.optimizer, probes=[probe], holdout=token_batches(4), strict=True) as w:
        one.train(steps)
    return w.run


def logits(model: nn.Module, weights: dict[str, Tensor] | None = None) -> Tensor:
    """Of every position that has a target, in float64."""
    model = copy.deepcopy(model).double().eval()
    if weights is not None:
        model.load_state_dict(weights)
    found = []
    for batch in token_batches(4):
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.detach()
        found.append(out[:, :-1][batch["labels"][:, 1:] != -100])
    return torch.cat(found)


def kl(a: Tensor, b: Tensor) -> float:
    p, q = a.log_softmax(-1), b.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def cut_outright(one: Adapted, ranks: dict[str, int]) -> Tensor:
    """Logits of the plain model with W + the best approximation of ΔW of these ranks."""
    weights = dict(one.base)
    for scope, rank in ranks.items():
        u, s, v = torch.linalg.svd(update(one, scope), full_matrices=False)
        weights[f"{scope}.weight"] = one.base[f"{scope}.weight"] + (u[:, :rank] * s[:rank]) @ v[:rank]
    return logits(language_model(), weights)


def number(run: ls.Run, name: str, **labels: Any) -> float:
    frame = run.frame(PROBE, name, "model")
    for label, wanted in labels.items():
        frame = frame[frame[label] == wanted]
    assert len(frame) == 1
    return float(frame.value.iloc[0])


def module_rows(run: ls.Run, name: str) -> Any:
    return run.frame(PROBE, name, "module").set_index("scope")


@pytest.mark.parametrize("family", BASED)
def test_what_is_lost_is_what_weights_lose_that_are_cut_outright(family: str) -> None:
    one = adapted(family)
    run = watched(one, steps=2 if family == "adalora" else 10)  # its allocator prunes after the step that is measured
    whole = logits(one.model)
    spectra = {scope: torch.linalg.svdvals(update(one, scope)) for scope in scopes(one)}
    for energy in (0.5, 0.9, 0.99):
        ranks = dict(zip(spectra, ranks_each(list(spectra.values()), energy), strict=True))
        assert number(run, "kl", cut="each", energy=energy) == pytest.approx(
            kl(whole, cut_outright(one, ranks)), rel=2e-3, abs=1e-10
        )
        together = dict(zip(spectra, ranks_all(list(spectra.values()), energy), strict=True))
        assert number(run, "kl", cut="all", energy=energy) == pytest.approx(
            kl(whole, cut_outright(one, together)), rel=2e-3, abs=1e-10
        )
    nothing = kl(whole, logits(language_model(), one.base))
    assert number(run, "kl", cut="each", energy=0.0) == pytest.approx(nothing, rel=2e-3)
    best = module_rows(run, "recommended_rank")
    lost = kl(whole, cut_outright(one, {scope: int(value) for scope, value in best.value.items()}))
    assert lost <= 0.0102 * nothing, "the ranks that are recommended were tried"
    assert set(best.family) == {family}


def test_doras_direction_is_cut_and_its_magnitude_stays() -> None:
    one = adapted("dora")
    run = watched(one)
    whole, weights = logits(one.model), dict(one.base)
    for scope in scopes(one):
        u, s, v = torch.linalg.svd(update(one, scope), full_matrices=False)
        rank = ranks_each([s], 0.75)[0]
        turned = one.base[f"{scope}.weight"] + (u[:, :rank] * s[:rank]) @ v[:rank]
        magnitude = layer_at(one, scope).lora_magnitude_vector["default"].weight.detach().double()
        weights[f"{scope}.weight"] = magnitude[:, None] * turned / turned.norm(dim=1, keepdim=True)
    found = number(run, "kl", cut="each", energy=0.75)
    assert found == pytest.approx(kl(whole, logits(language_model(), weights)), rel=2e-3)


def test_ranks_against_sums_by_hand() -> None:
    rng = np.random.default_rng(0)
    spectra = [np.sort(rng.exponential(size=n))[::-1].copy() for n in (1, 3, 8)] + [np.zeros(4)]
    for energy in (0.3, 0.9, 0.9999):
        each = ranks_each([torch.from_numpy(s) for s in spectra], energy)
        for s, rank in zip(spectra, each, strict=True):
            total = math.fsum(s**2)
            kept = [math.fsum(s[:k] ** 2) / total if total else 1.0 for k in range(len(s) + 1)]
            assert rank == (next(k for k, share in enumerate(kept) if share >= energy) if total else 0)
        every = sorted(((value, place) for place, s in enumerate(spectra) for value in s), reverse=True)
        total, held, counts = math.fsum(v**2 for v, _ in every), 0.0, [0] * len(spectra)
        for value, place in every:
            if held >= energy * total:
                break
            held, counts[place] = held + value**2, counts[place] + 1
        assert ranks_all([torch.from_numpy(s) for s in spectra], energy) == counts


def test_an_adapter_of_known_rank() -> None:
    """ΔW of one module has rank 2 and all others are zero: no more than 2 is recommended there, and 0 elsewhere."""
    one = adapted("lora")
    with torch.no_grad():
        layer_at(one, FIRST).lora_B["default"].weight[:, :2] = 3 * torch.randn(16, 2)
    run = ls.audit(one.model, token_batches(4), probes=[ls.AdapterTruncation()], strict=True)
    directions, best = module_rows(run, "directions"), module_rows(run, "recommended_rank")
    assert directions.value[FIRST] == 2
    assert 1 <= best.value[FIRST] <= 2
    assert best.value.drop(FIRST).eq(0).all()
    assert number(run, "recommended_parameters") == pytest.approx(
        best.value[FIRST] * 32 / (RANK * sum(sum(update(one, scope).shape) for scope in scopes(one)))
    )
    assert module_rows(run, "rank").value.eq(RANK).all()


def test_an_adapter_that_does_nothing_has_no_recommended_rank() -> None:
    run = ls.audit(adapted("lora").model, token_batches(2), probes=[ls.AdapterTruncation()], strict=True)
    best = module_rows(run, "recommended_rank")
    assert best.value.isna().all()
    assert set(best.status) == {NOTHING}
    assert number(run, "kl", energy=0.0) == 0


def test_no_cut_that_is_good_enough_is_said_so() -> None:
    one = adapted("lora")
    run = watched(one, energies=(0.1,), share=1e-6)
    status = set(module_rows(run, "recommended_rank").status)
    assert len(status) == 1
    assert "every cut that was tried loses more than 1e-06" in status.pop()


@pytest.mark.parametrize("family", ["lora", "pissa", "adalora", "dora"])
def test_trying_leaves_the_model_as_it_was(family: str) -> None:
    one = adapted(family)
    one.train(3)
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    flags = [module.training for module in one.model.modules()]
    random = torch.get_rng_state()
    ls.audit(one.model, token_batches(2), probes=[ls.AdapterTruncation()], strict=True)
    assert all(torch.equal(value, before[name]) for name, value in one.model.state_dict().items())
    assert [module.training for module in one.model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("family", "reason"), [("vera", "saves next to nothing"), ("ia3", "vector"), ("layernorm", "vectors")]
)
def test_families_that_cannot_be_cut_say_why(family: str, reason: str) -> None:
    run = watched(adapted(family), steps=2)
    best = module_rows(run, "recommended_rank")
    assert len(best) > 0
    assert best.value.isna().all()
    assert best.status.str.contains(reason).all()


def test_merged_inactive_and_second_adapters() -> None:
    one = adapted("lora")
    one.train(3)
    one.model.add_adapter("other", one.model.peft_config["default"])
    run = ls.audit(one.model, token_batches(2), probes=[ls.AdapterTruncation()], strict=True)
    frame = run.frame(PROBE, "recommended_rank", "module")
    assert frame[frame.adapter == "default"].value.notna().all()
    assert set(frame[frame.adapter == "other"].status) == {"it is not active: no forward uses it"}
    one.model.merge_adapter()
    run = ls.audit(one.model, token_batches(2), probes=[ls.AdapterTruncation()], strict=True)
    frame = run.frame(PROBE, "recommended_rank", "module")
    assert set(frame[frame.adapter == "default"].status) == {"it is merged into the weight: unmerge it first"}


def test_a_start_in_a_base_of_low_precision_is_refused_by_name() -> None:
    one = adapted("pissa")
    one.model.to(torch.bfloat16)
    one.train(2)
    run = ls.audit(one.model, token_batches(2), probes=[ls.AdapterTruncation()], strict=True)
    assert module_rows(run, "recommended_rank").status.str.contains("torch.bfloat16, whose rounding").all()


@pytest.mark.parametrize("options", [{"energies": ()}, {"energies": (1.0,)}, {"share": 0}, {"examples": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="AdapterTruncation"):
        ls.AdapterTruncation(**options)
