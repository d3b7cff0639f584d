"""Outputs kept, and variants compared with them, without a trace in the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from torch import Tensor, nn

from learnscope.model.outputs.reference import compare_outputs, reference_outputs
from learnscope.model.weights.swap import swapped
from learnscope.task import HuggingFaceTask, TupleTask
from probes.reference import tiny_gpt2, tokens


def classifier() -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    return model, [(torch.randn(n, 5), torch.arange(n) % 3) for n in (6, 3)]


def other_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() + 0.3 * torch.randn_like(p) for name, p in model.named_parameters()}


def test_a_variant_against_scipy_over_all_batches() -> None:
    model, batches = classifier()
    reference = reference_outputs(model, TupleTask(), batches)
    weights = other_weights(model)
    with swapped(model, weights):
        found = compare_outputs(model, TupleTask(), batches, reference)
    model.eval()
    x = torch.cat([batch[0] for batch in batches])
    truth = torch.cat([batch[1] for batch in batches]).numpy()
    with torch.no_grad():
        a = model(x).double().numpy()
        with swapped(model, weights):
            b = model(x).double().numpy()
    assert found["kl"] == pytest.approx(rel_entr(softmax(a, 1), softmax(b, 1)).sum(1).mean(), rel=1e-5)
    assert found["mse"] == pytest.approx(((a - b) ** 2).mean(), rel=1e-5)
    right = [logits.argmax(1) == truth for logits in (a, b)]
    assert float(found["broke"]) == pytest.approx((right[0] & ~right[1]).mean())
    assert float(found["kl"]) > 1e-3, "the weights that were exchanged are those that ran"


def test_the_model_against_itself_is_exact_and_untouched() -> None:
    model, batches = classifier()
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    reference = reference_outputs(model, TupleTask(), batches)
    found = {name: float(v) for name, v in compare_outputs(model, TupleTask(), batches, reference).items()}
    assert (found["kl"], found["mse"], found["cosine"], found["top1_agree"]) == (0, 0, 1, 1)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert not reference[0].outputs.logits.requires_grad


def test_padding_does_not_count() -> None:
    model = tiny_gpt2()
    ids = tokens(3, 9)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    reference = reference_outputs(model, HuggingFaceTask(), [batch])
    rows = reference[0].outputs.rows
    assert rows is not None
    assert len(rows) == 8 + 4 + 8
    weights = other_weights(model)
    with swapped(model, weights):
        found = compare_outputs(model, HuggingFaceTask(), [batch], reference)
    model.eval()
    keep = mask[:, 1:].bool()
    with torch.no_grad():
        a = model(ids, attention_mask=mask).logits[:, :-1][keep].double().numpy()
        with swapped(model, weights):
            b = model(ids, attention_mask=mask).logits[:, :-1][keep].double().numpy()
    assert float(found["kl"]) == pytest.approx(rel_entr(softmax(a, 1), softmax(b, 1)).sum(1).mean(), rel=1e-5)


def test_regression() -> None:
    model = nn.Linear(4, 2)
    batches = [(torch.randn(5, 4), torch.randn(5, 2))]
    reference = reference_outputs(model, TupleTask(), batches)
    weights = other_weights(model)
    with swapped(model, weights):
        found = compare_outputs(model, TupleTask(), batches, reference)
    with torch.no_grad():
        difference = batches[0][0] @ (weights["weight"] - model.weight).T + weights["bias"] - model.bias
    assert float(found["mse"]) == pytest.approx(float(difference.square().mean()), rel=1e-5)
    assert math.isnan(found["kl"])
    assert math.isnan(found["top1_agree"])


def test_outputs_that_are_the_models_own_memory() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight[: len(x)]

    model, batches = Table(), [(torch.zeros(4, 1), torch.zeros(4, 3))]
    reference = reference_outputs(model, TupleTask(), batches)
    with swapped(model, {"weight": torch.zeros(4, 3)}):
        found = compare_outputs(model, TupleTask(), batches, reference)
    assert float(found["mse"]) == pytest.approx(float(np.square(model.weight.detach().numpy()).mean()), rel=1e-5)
