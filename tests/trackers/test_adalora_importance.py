"""AdaLoRA's importance scores at every step: the allocator's, its last ones, or what gradients and weights tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import learnscope as ls
from learnscope.trackers import SpectralTracker
from model.adapters.adapted import Adapted, adapted
from seeds.tiny import token_batches

MODULE = "model.layers.0.self_attn.q_proj"


def parts(one: Adapted) -> dict[str, Any]:
    layer = one.model.get_submodule(f"base_model.model.{MODULE}")
    return {part: getattr(layer, f"lora_{part}")["default"] for part in "EAB"}


def sensitivity(one: Adapted) -> Tensor:
    """Σ of |w·g| of E, and means over the rows of A and the columns of B, in float64."""
    products = {part: (p.detach().double() * p.grad.double()).abs() for part, p in parts(one).items()}
    return products["E"][:, 0] + products["A"].mean(1) + products["B"].mean(0)


def test_a_plain_loop_without_the_allocator() -> None:
    one = adapted("adalora")
    tracker = SpectralTracker(one.model, 1)
    batch = token_batches(1)[0]
    with torch.no_grad():
        for p in parts(one).values():
            p.add_(0.1)
    tracker.log_step(0)
    history = tracker.get_layer_history(MODULE)
    assert history["importance_scores"][0] == pytest.approx(parts(one)["E"].abs().flatten().tolist())
    assert history["importance_sum"] == [None]
    assert "|E|" in history["reasons"]["importance_sum"][0]
    one.model(**batch).loss.backward()
    tracker.log_step(1)
    history = tracker.get_layer_history(MODULE)
    assert history["importance_scores"][1] == pytest.approx(sensitivity(one).tolist(), rel=1e-5)


def test_the_last_scores_of_the_allocator_stay_when_its_schedule_has_ended() -> None:
    one = adapted("adalora")
    config = one.model.peft_config["default"]
    config.total_step, config.tinit, config.tfinal, config.deltaT = 6, 1, 2, 1
    tracker = SpectralTracker(one.model, 1)
    allocator = one.model.base_model.rankallocator
    for step, batch in enumerate(token_batches(6), 1):
        one.model(**batch).loss.backward()
        one.optimizer.step()
        one.model.base_model.update_and_allocate(step)
        tracker.log_step(step)
        one.optimizer.zero_grad()
        assert bool(allocator.exp_avg_ipt) == (step < 4), "PEFT drops its scores at the end of its schedule"
    history = tracker.get_layer_history(MODULE)
    scores = history["importance_scores"]
    assert scores[0] != scores[1] != scores[2]
    assert scores[3:] == [scores[2]] * 3
    assert history["importance_sum"][-1] == pytest.approx(sum(scores[2]))


def test_the_record_says_how_scores_were_computed() -> None:
    one = adapted("adalora")
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterSpectrum(every=1)], strict=True) as w:
        for step, batch in enumerate(token_batches(2), 1):
            one.model(**batch).loss.backward()
            if step == 2:
                one.model.base_model.update_and_allocate(1)
            one.optimizer.step()
            one.optimizer.zero_grad()
    ways = [record.notes["importance"][MODULE] for record in w.run.records("AdapterSpectrum")]
    assert ways == ["|w·∂L/∂w| of this step, as the rank allocator has no scores", "the rank allocator's scores"]
