"""Variants that are run together, beside the same variants one by one, and how often blocks run for them.

A block sees the same numbers either way, but as rows of a larger matrix, for which kernels may add up in another order.
Logits then differ by a few units of float32's last place (6e-8 of their size), and a divergence, which is about half
the square of a logit's change, by that over the change: for the smallest change here, 1e-3 of a logit, by 1e-4 of it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.outputs import scores
from learnscope.model.outputs.blocks import find_blocks
from learnscope.model.outputs.suffix import Suffix
from learnscope.posttrain.session import AuditSession
from learnscope.probes import BitOptimum, BitSensitivity, BitWidths
from learnscope.record import Record
from probes.bits.bit_models import texts, trained_gpt2

NEAR = {"rel": 1e-3, "abs": 1e-9}


def llama() -> tuple[nn.Module, list[Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=40, pad_token_id=0))
    return model, [texts([9, 4], 9), texts([7, 8, 6], 8)]


def images() -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)]
    return nn.Sequential(*layers), [(torch.randn(5, 1, 8, 8), torch.randint(0, 3, (5,))) for _ in range(2)]


def numbers() -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    return model, [(torch.randn(7, 6), torch.randn(7, 2))]


MODELS = {"gpt2": trained_gpt2, "llama": llama, "cnn": images, "mlp": numbers}


def rows(record: Record) -> dict[tuple[Any, ...], float | None]:
    return {(row.name, row.scope, *sorted(row.labels.items())): row.value for row in record.rows()}


@pytest.mark.parametrize("kind", MODELS)
def test_variants_that_run_together_give_the_numbers_that_each_gives_alone(kind: str, monkeypatch: Any) -> None:
    model, batches = MODELS[kind]()
    blocks = {id(block): 0 for block in find_blocks(model).values()}
    for block in find_blocks(model).values():
        block.register_forward_hook(lambda module, *_: blocks.update({id(module): blocks[id(module)] + 1}))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    probe = BitSensitivity(bits=(8, 4, 2))
    found = {}
    for room in (1, 8):
        monkeypatch.setattr(scores, "MOST_TOGETHER", room)
        blocks = dict.fromkeys(blocks, 0)
        found[room] = rows(AuditSession(model).measure(probe, batches)), list(blocks.values())
    (alone, runs_alone), (together, runs_together) = found[1], found[8]
    assert alone.keys() == together.keys()
    for key, value in alone.items():
        assert together[key] == (None if value is None else pytest.approx(value, **NEAR)), key
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    # calls of blocks, also of those that return what was recorded: a pass for each variant, or for each block
    units, count = len({key[1] for key in alone if key[0] == "kl" or key[0] == "mse"}), len(blocks)
    recorded = runs_alone[0] - 3 * units * len(batches)
    assert runs_alone == [recorded + 3 * units * len(batches)] * count
    assert runs_together[-1] <= recorded + (count + 2) * len(batches)


class Crosstalk(nn.Module):
    """A model whose outputs for an example depend on the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x - x.mean(0)


def test_a_model_whose_examples_depend_on_each_other_runs_its_variants_one_by_one(monkeypatch: Any) -> None:
    torch.manual_seed(0)
    model, batch = Crosstalk(), (torch.randn(5, 6), torch.randint(0, 6, (5,)))
    together = rows(AuditSession(model).measure(BitSensitivity(), [batch]))
    monkeypatch.setattr(Suffix, "only_block", lambda self, names: None)
    assert together == rows(AuditSession(model).measure(BitSensitivity(), [batch]))


def test_quantised_copies_are_made_once_for_all_that_use_them_and_within_their_room() -> None:
    model, batches = trained_gpt2()
    made: list[QuantisedCopies] = []
    session = AuditSession(model)
    with session.sharing(batches):
        for probe in (BitSensitivity(), BitWidths(), BitOptimum()):
            session.measure(probe, batches)
        assert session._shared is not None
        made = [each for each in session._shared.cache.values() if isinstance(each, QuantisedCopies)]
    [copies] = made
    tensors, widths = 3 * 4, {8, 4, 3, 2}
    # the optimum is compared with uniform and progressive mixes, at widths that are not among these
    assert tensors * len(widths) <= copies.made <= tensors * (len(widths) + 3)
    assert 0 <= copies.room < sum(parameter.nbytes for parameter in model.parameters())
