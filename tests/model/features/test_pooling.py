"""One vector an example, whatever a layer gives out; and never more than that in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.features.pooling import NOT_RUN, PoolingError, default_layers, pooled, pooled_features
from learnscope.task import HuggingFaceTask, TupleTask
from probes.reference import ConvNet, tiny_gpt2, tokens

NAN = float("nan")
MASK = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])


def sequence() -> Tensor:
    x = torch.arange(4 * 4 * 2, dtype=torch.float32).reshape(4, 4, 2)
    return torch.where(MASK[..., None].bool(), x, NAN)  # what stands at padding must not matter


def test_sequences_by_hand() -> None:
    x = sequence()
    mean = torch.tensor([[2.0, 3], [13, 14], [19, 20], [NAN, NAN]])
    last = torch.tensor([[4.0, 5], [14, 15], [22, 23], [NAN, NAN]])
    first = torch.tensor([[0.0, 1], [12, 13], [16, 17], [NAN, NAN]])
    for how, expected in (("mean", mean), ("last", last), ("cls", first)):
        found = pooled(x, 4, how, MASK)
        assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1)), how
        flat = pooled(x.reshape(16, 2), 4, how, MASK)
        assert torch.equal(flat.nan_to_num(-1), expected.nan_to_num(-1)), how
    whole = torch.arange(12.0).reshape(2, 3, 2)
    assert pooled(whole, 2).tolist() == [[2, 3], [8, 9]]
    assert pooled(whole, 2, "last").tolist() == [[4, 5], [10, 11]]
    assert pooled(whole, 2, "cls").tolist() == [[0, 1], [6, 7]]
    assert pooled(whole, 2, "mean", MASK[:2]).tolist() == [[2, 3], [8, 9]]  # of another length: not its mask


def test_maps_vectors_and_containers() -> None:
    image = torch.randn(3, 5, 4, 6)
    assert torch.allclose(pooled(image, 3), image.mean((2, 3)))
    assert torch.allclose(pooled(image, 3, "last"), image.mean((2, 3)))
    assert torch.allclose(pooled(image, 3, module=nn.LayerNorm(6)), image.mean((1, 2)))
    assert torch.allclose(pooled(torch.randn(3, 5, 2, 2, 2).mul(0).add(2), 3), torch.full((3, 5), 2.0))
    signal = torch.randn(3, 5, 7)
    assert torch.allclose(pooled(signal, 3, module=nn.Conv1d(1, 1, 1)), signal.mean(2))
    assert torch.allclose(pooled(signal, 3, module=nn.TransformerEncoder), signal.mean(1))  # type: ignore[arg-type]
    assert torch.equal(pooled((signal[:, 0], "cache"), 3), signal[:, 0])
    assert torch.equal(pooled({"hidden": [None, signal[:, 0]]}, 3), signal[:, 0])
    assert pooled(torch.arange(3.0), 3).shape == (3, 1)
    half = pooled(signal.bfloat16(), 3)
    assert half.dtype == torch.float32
    assert torch.allclose(half, signal.bfloat16().double().mean(1).float())
    assert pooled(signal.double(), 3).dtype == torch.float64


@pytest.mark.parametrize(
    ("output", "word"),
    [
        (torch.randn(7, 2), r"gives out \[7, 2\] for 3 examples"),
        (torch.randn(5, 3, 2), "the first dimension is not theirs"),
        (torch.ones(3, 2, dtype=torch.int64), "int64 is not floating-point"),
        (None, "NoneType, in which there is no tensor"),
        (torch.tensor(1.0), "a single number"),
    ],
)
def test_what_has_no_vector_an_example_is_refused(output: Any, word: str) -> None:
    with pytest.raises(PoolingError, match=word):
        pooled(output, 3)


def test_features_of_gpt2_over_padded_batches() -> None:
    model = tiny_gpt2(attn_pdrop=0.5, resid_pdrop=0.5)
    model.train()
    batches = []
    for seed, length in ((0, 9), (1, 12)):
        torch.manual_seed(seed)
        ids, mask = tokens(4, length), torch.ones(4, length, dtype=torch.int64)
        mask[0, 5:], mask[2, :3] = 0, 0
        batches.append({"input_ids": ids, "attention_mask": mask})
    found = pooled_features(model, HuggingFaceTask(), batches, ["transformer.h.1", "transformer.ln_f", "lm_head"])
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    model.eval()
    expected = []
    with torch.no_grad():
        for batch in batches:
            hidden = model(**batch, output_hidden_states=True).hidden_states[-1].double()  # after the last norm
            kept = batch["attention_mask"][..., None].double()
            expected.append((hidden * kept).sum(1) / kept.sum(1))
    assert torch.allclose(found.vectors["transformer.ln_f"].double(), torch.cat(expected), atol=1e-6)
    assert {name: tuple(x.shape) for name, x in found.vectors.items()} == {
        "transformer.h.1": (8, 16), "transformer.ln_f": (8, 16), "lm_head": (8, 40),
    }  # fmt: skip
    assert not found.missing


class Twice(nn.Module):
    """A layer that runs twice in a forward, one that never runs, one that sees no examples."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(3, 3)
        self.idle = nn.Linear(3, 3)
        self.places = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shared(self.shared(x)) + self.places(torch.arange(1)))


def test_layers_that_run_twice_or_never() -> None:
    model, x = Twice(), torch.randn(6, 3)
    found = pooled_features(model, TupleTask(), [(x[:4],), (x[4:],)], ["shared", "idle", "places"])
    assert torch.allclose(found.vectors["shared"], model.shared(model.shared(x)))
    assert found.missing["idle"] == NOT_RUN
    assert "[1, 3] for 4 examples" in found.missing["places"]
    with pytest.raises(KeyError, match="no layer 'sharde'; close names: shared"):
        pooled_features(model, TupleTask(), [(x,)], ["sharde"])
    assert not any(module._forward_hooks for module in model.modules())


def test_layers_by_default() -> None:
    assert default_layers(tiny_gpt2(n_layer=5)) == [
        "transformer.h.0", "transformer.h.2", "transformer.h.4", "transformer.ln_f",
    ]  # fmt: skip
    assert default_layers(tiny_gpt2(n_layer=2, tie_word_embeddings=False)) == [
        "transformer.h.0", "transformer.h.1", "transformer.ln_f",
    ]  # fmt: skip
    assert default_layers(ConvNet()) == ["conv1", "bn", "conv2"]
    assert default_layers(nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)])) == ["0", "2", "5", "7"]
    assert default_layers(nn.Linear(2, 2)) == ["(root)"]
    assert default_layers(nn.Sequential(nn.Linear(2, 2))) == ["0"]
    wrapped = torch.compile(ConvNet(), backend="aot_eager")
    assert default_layers(wrapped) == ["conv1", "bn", "conv2"]  # type: ignore[arg-type]
    x = torch.randn(5, 1, 8, 8)
    found = pooled_features(wrapped, TupleTask(), [(x,)], ["conv2"])  # type: ignore[arg-type]
    assert found.vectors["conv2"].shape == (5, 6)
    root = pooled_features(nn.Linear(2, 2), TupleTask(), [(torch.randn(5, 2),)], ["(root)"])
    assert root.vectors["(root)"].shape == (5, 2)
