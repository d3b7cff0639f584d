"""The loader of packed files that the docs print reads what learnscope reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from learnscope.model.bits.packed import load_packed, save_packed
from learnscope.model.bits.quantised_units import find_units
from learnscope.tensor.bits.quantize import Scheme
from model.bits.quantised_models import build

PAGE = Path(__file__).parents[4] / "docs" / "posttrain.md"


def documented() -> Any:
    (block,) = [part for part in PAGE.read_text().split("```python\n") if "def read_packed(" in part]
    names: dict[str, Any] = {}
    exec(block.partition("\n\n\nmodel.load_state_dict")[0], names)
    return names["read_packed"]


@pytest.mark.parametrize("family", ["gpt2", "llama", "conv"])
@pytest.mark.parametrize(
    "scheme", [Scheme(), Scheme(symmetric=False, granularity="group", group_size=7), Scheme(granularity="tensor")]
)
def test_the_same_weights(family: str, scheme: Scheme, tmp_path: Path) -> None:
    model, other = build(family), build(family)
    units = find_units(model, embeddings=True)
    widths = (2, 3, 4, 5, 6, 7, 8, 16, 32)
    bits = {unit.name: widths[place % len(widths)] for place, unit in enumerate(units)}
    save_packed(model, bits, scheme, tmp_path / "p.safetensors")
    load_packed(tmp_path / "p.safetensors", other)
    read = documented()(tmp_path / "p.safetensors")
    own = dict(other.state_dict())
    assert read.keys() <= own.keys()
    for name, tensor in read.items():
        assert torch.equal(tensor, own[name]), name
