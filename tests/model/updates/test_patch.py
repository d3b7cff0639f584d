"""Patches between checkpoints: bit for bit, small, and in a file that anyone can read."""

from __future__ import annotations

import json
import os
import struct
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import learnscope as ls
from learnscope.model.updates.patch_info import PatchInfo

DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e8m0fnu, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32,
    torch.bool, torch.complex64,
]  # fmt: skip
SHAPES = [(), (0,), (3, 0), (1,), (7,), (40, 30), (5, 4, 60), (3000,)]
SHARES = [0, 0.001, 0.05, 0.5, 1]


def raw(tensor: Tensor) -> bytes:
    """The bytes in row-major order: what bit for bit means."""
    flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def exact(found: Any, wanted: Any) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == wanted[name].dtype
        and found[name].shape == wanted[name].shape
        and raw(found[name]) == raw(wanted[name])
        for name in wanted
    )


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
    """Any bit pattern: NaN with payloads, infinities, subnormal numbers, both zeros."""
    size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    if not size:
        return torch.empty(shape, dtype=dtype)
    noise = rng.integers(0, 2 if dtype == torch.bool else 256, size, dtype=np.uint8)
    return torch.from_numpy(noise).view(dtype).reshape(shape)


def altered(tensor: Tensor, share: float, rng: np.random.Generator) -> Tensor:
    new = tensor.clone().reshape(-1)
    chosen = torch.from_numpy(rng.random(new.numel()) < share)
    fresh = random_bits((new.numel(),), tensor.dtype, rng)
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    new.view(width)[chosen] = fresh.view(width)[chosen]
    return new.reshape(tensor.shape)


@settings(max_examples=40, deadline=None)
@given(
    specs=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.sampled_from(SHARES)), min_size=1, max_size=6
    ),
    seed=st.integers(0, 2**32),
    how=st.sampled_from(["dict", "safetensors", "torch"]),
)  # fmt: skip
def test_round_trip(specs: list[Any], seed: int, how: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("patch")
    old = {f"t{number}.{dtype}": random_bits(shape, dtype, rng) for number, (dtype, shape, _) in enumerate(specs)}
    new = {name: altered(t, share, rng) for (name, t), (_, _, share) in zip(old.items(), specs, strict=True)}
    before = {name: raw(tensor) for name, tensor in old.items()}
    if how == "dict":
        info = ls.export_patch(old, new, folder / "p.safetensors")
        found = ls.apply_patch(old, folder / "p.safetensors")
        assert all((found[c.name] is old[c.name]) == (c.how == "same") for c in info.table), "unchanged ones are shared"
    else:
        save = save_file if how == "safetensors" else torch.save
        paths = [folder / f"{side}.{'safetensors' if how == 'safetensors' else 'pt'}" for side in ("old", "new")]
        save(old, paths[0])
        save(new, paths[1])
        info = ls.export_patch(paths[0], str(paths[1]), folder / "p.safetensors")
        out = ls.apply_patch(paths[0], folder / "p.safetensors", out=folder / "out.safetensors")
        found = load_file(out)
    assert exact(found, new)
    assert {name: raw(tensor) for name, tensor in old.items()} == before
    account(info, old, new)


def account(info: PatchInfo, old: dict[str, Tensor], new: dict[str, Tensor]) -> None:
    """The numbers of a patch, counted again with NumPy from the bytes."""
    assert info.bytes == os.path.getsize(info.path)
    assert info.full_bytes == sum(len(raw(tensor)) for tensor in new.values())
    assert info.entries == sum(tensor.numel() for tensor in new.values())
    for change in info.table:
        size = new[change.name].element_size()
        pair = [np.frombuffer(raw(side[change.name]), np.uint8).reshape(-1, size) for side in (old, new)]
        differs = int((pair[0] != pair[1]).any(1).sum())
        assert change.changed == differs
        assert (change.how == "same") == (differs == 0)
        assert change.bytes <= len(raw(new[change.name]))
    assert info.changed == sum(change.changed for change in info.table)
    if info.full_bytes:
        assert info.ratio == info.bytes / info.full_bytes
        assert info.changed_share == info.changed / info.entries


def test_bits_count_not_values(tmp_path: Path) -> None:
    payload = torch.tensor([0x7FC00001, 0x7FC00002, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    filler = torch.ones(500)
    old = {"w": torch.cat([torch.tensor([0.0, -0.0, float("nan")]), payload, filler])}
    new = {"w": old["w"].clone()}
    assert ls.export_patch(old, new, tmp_path / "none.safetensors").changed == 0, "a NaN equals the same NaN"
    new["w"][0] = -0.0
    new["w"][5] = payload[1]
    info = ls.export_patch(old, new, tmp_path / "p.safetensors")
    assert (info.changed, info.table[0].how) == (2, "sparse")
    assert exact(ls.apply_patch(old, info.path), new)


def read_by_hand(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The file as its format says, without safetensors, torch or learnscope."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body, meta = data[8 + length :], json.loads(header.pop("__metadata__")["learnscope"])
    parts = {key: body[slice(*spec["data_offsets"])] for key, spec in header.items()}
    assert sum(map(len, parts.values())) == len(body), "nothing but tensors: no pickle, no code"
    return meta, parts


def test_the_file_is_what_the_format_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    old = {"a": random_bits((4000,), torch.int32, rng), "b": random_bits((9,), torch.int32, rng)}
    new = {"a": altered(old["a"], 0.003, rng), "b": altered(old["b"], 1, rng)}
    ls.export_patch(old, new, tmp_path / "p.safetensors")
    meta, parts = read_by_hand(tmp_path / "p.safetensors")
    assert (meta["kind"], meta["format"]) == ("patch", 1)
    assert parts.keys() == {"gaps/a", "values/a", "whole/b"}
    values = np.frombuffer(parts["values/a"], np.int32)
    gaps = np.frombuffer(parts["gaps/a"], {1: np.uint8, 2: np.uint16}[len(parts["gaps/a"]) // len(values)])
    found, position = old["a"].numpy().copy(), -1
    for gap, value in zip(gaps.tolist(), values.tolist(), strict=True):
        position += gap + 1
        found[position] = value
    assert found.tolist() == new["a"].tolist()
    assert np.frombuffer(parts["whole/b"], np.int32).tolist() == new["b"].tolist()


def test_sizes_at_one_per_cent(tmp_path: Path) -> None:
    """What the documentation claims."""
    rng = np.random.default_rng(2)
    for dtype, claimed in ((torch.bfloat16, 0.016), (torch.float32, 0.014)):
        old = {f"h.{i}": random_bits((512, 1024), dtype, rng) for i in range(4)}
        new = {name: altered(tensor, 0.01, rng) for name, tensor in old.items()}
        info = ls.export_patch(old, new, tmp_path / "p.safetensors")
        assert info.ratio is not None
        assert info.ratio == pytest.approx(claimed, abs=0.001)


@cache
def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=500, n_positions=32, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).bfloat16()


def gpt2() -> Any:
    model = deepcopy(_gpt2())
    assert model.lm_head.weight is model.transformer.wte.weight
    return model


@cache
def _trained_gpt2() -> Any:
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    ids = torch.arange(64).view(4, 16)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    return model


def trained_gpt2() -> Any:
    """After one step with the learning rate of reinforcement learning."""
    return deepcopy(_trained_gpt2())


def test_one_small_step_of_a_bfloat16_transformer(tmp_path: Path) -> None:
    trainer, sampler = trained_gpt2(), gpt2()
    path = tmp_path / "p.safetensors"
    info = ls.export_patch(sampler, trainer, path)
    assert info.full_bytes == sum(parameter.nbytes for parameter in trainer.parameters()), "tied ones once"
    assert info.changed_share is not None
    assert info.ratio is not None
    assert 0 < info.changed_share < 0.2, "most updates are lost to rounding"
    assert info.ratio < 0.3
    assert ls.apply_patch(sampler, path) is sampler
    assert exact(sampler.state_dict(), trainer.state_dict())
    assert sampler.lm_head.weight is sampler.transformer.wte.weight
    _, parts = read_by_hand(path)
    assert sum("lm_head" in key or "wte" in key for key in parts) <= 2, "one tensor: gaps and values"


@pytest.mark.parametrize("kept", ["lm_head.weight", "transformer.wte.weight"])
@pytest.mark.parametrize("stored", ["old", "new", "both"])
def test_files_may_keep_one_of_the_tied_names(kept: str, stored: str, tmp_path: Path) -> None:
    trainer, sampler = trained_gpt2(), gpt2()
    dropped = ({"lm_head.weight", "transformer.wte.weight"} - {kept}).pop()

    def saved(model: Any, side: str) -> Any:
        if stored not in (side, "both"):
            return model
        path = tmp_path / f"{side}.safetensors"
        save_file({name: t for name, t in model.state_dict().items() if name != dropped}, path)
        return path

    old, new = saved(sampler, "old"), saved(trainer, "new")
    info = ls.export_patch(old, new, tmp_path / "p.safetensors")
    assert not {"added", "removed"} & {change.how for change in info.table}
    ls.apply_patch(sampler, info.path)
    assert exact(sampler.state_dict(), trainer.state_dict())
    if isinstance(old, Path):
        found = load_file(ls.apply_patch(old, info.path, tmp_path / "out.safetensors"))
        assert exact(found, {name: t for name, t in trainer.state_dict().items() if name != dropped})


def test_files_are_not_loaded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(9), "b": torch.zeros(3)}, tmp_path / "old.safetensors")
    save_file({"a": torch.ones(9), "b": torch.zeros(3)}, tmp_path / "new.safetensors")
    monkeypatch.delattr("learnscope.model.weights.checkpoint.load_file")
    ls.export_patch(tmp_path / "old.safetensors", tmp_path / "new.safetensors", tmp_path / "p.safetensors")
    ls.apply_patch(tmp_path / "old.safetensors", tmp_path / "p.safetensors", tmp_path / "out.safetensors")
    assert load_file(tmp_path / "out.safetensors")["a"].tolist() == [1.0] * 9


def test_shared_and_strided_memory(tmp_path: Path) -> None:
    """Slices of one tensor, a transposed tie, and two untied names that the new checkpoint ties."""
    fused, square = torch.randn(6, 50), torch.randn(30, 30)
    old = {"q": fused[:3], "k": fused[3:], "s": square, "t": square.t(), "x": torch.zeros(8), "y": torch.ones(8)}
    old |= {"one": torch.randn(10)[::5][:1], "none": torch.zeros(9).as_strided((0,), (0,))}
    both = torch.full((8,), 3.0)
    fresh = square + 1
    new = {"q": fused[:3] + 1, "k": fused[3:] * 2, "s": fresh, "t": fresh.t(), "x": both, "y": both}
    new |= {"one": torch.randn(10)[::5][:1], "none": torch.zeros(0)}
    info = ls.export_patch(old, new, tmp_path / "p.safetensors")
    assert exact(ls.apply_patch(old, info.path), new)
    torch.save(old, tmp_path / "old.pt")
    assert exact(load_file(ls.apply_patch(tmp_path / "old.pt", info.path, tmp_path / "out.safetensors")), new)


def test_the_info_in_words(tmp_path: Path) -> None:
    old = {"a": torch.zeros(1000), "b": torch.zeros(1000), "c": torch.zeros(2)}
    new = {"a": torch.zeros(1000), "b": torch.zeros(1000), "d": torch.zeros(0)}
    new["b"][:10] = 1
    info = ls.export_patch(old, new, tmp_path / "p.safetensors")
    words = f"{info.bytes / 1000:.1f} kB, {100 * info.bytes / 8000:.1f} % of the full 8.0 kB"
    assert str(info) == (
        f"p.safetensors: {words}; 0.50 % of 2.0 k entries in 3 of 4 tensors changed, 1 added, 1 removed"
    )
    empty = ls.export_patch({"a": torch.zeros(0)}, {"a": torch.zeros(0)}, tmp_path / "p.safetensors")
    assert (empty.ratio, empty.changed_share) == (None, None)
    assert "n/a of the full 0 B" in str(empty)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(2, dtype=torch.complex128), "complex128, which safetensors cannot store"),
        (torch.zeros(2, device="meta"), "meta device"),
        (torch.zeros(2).to_sparse(), "sparse_coo"),
        (nn.UninitializedParameter(), "not initialised yet"),
    ],
)
def test_what_has_no_plain_bytes_is_refused_by_name(tensor: Tensor, reason: str, tmp_path: Path) -> None:
    for old, new in (({"w": tensor}, {"w": torch.zeros(2)}), ({"w": torch.zeros(2)}, {"w": tensor})):
        with pytest.raises(ls.CheckpointError, match=rf"^w is .*{reason}"):
            ls.export_patch(old, new, tmp_path / "p.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(9)}, tmp_path / "a.safetensors")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ls.PatchError, match="would overwrite the checkpoint"):
        ls.export_patch({"a": torch.ones(9)}, "a.safetensors", tmp_path / "a.safetensors")


def test_an_older_patch_survives_a_failed_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.safetensors"
    ls.export_patch({"a": torch.zeros(9)}, {"a": torch.ones(9)}, path)
    whole = path.read_bytes()

    def full_disk(tensors: Any, temporary: Path, metadata: Any) -> None:
        Path(temporary).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("learnscope.model.weights.sealed.save_file", full_disk)
    with pytest.raises(OSError, match="no space left"):
        ls.export_patch({"a": torch.zeros(9)}, {"a": torch.zeros(9)}, path)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]


def test_large_tensors_go_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnscope.model.updates.patch.PIECE", 64)
    monkeypatch.setattr("learnscope.model.weights.lazy._PIECE", 100)
    old = {"w": torch.arange(1000.0)}
    new = {"w": old["w"].clone()}
    new["w"][[0, 63, 64, 127, 128, 999]] = -1
    info = ls.export_patch(old, new, tmp_path / "p.safetensors")
    assert info.changed == 6
    assert exact(ls.apply_patch(old, info.path), new)
    for position in (0, 24, 25, 500, 998):
        other = {"w": old["w"].clone()}
        other["w"][position] += 1
        with pytest.raises(ls.PatchError, match="'w' has other values"):
            ls.apply_patch(other, info.path)


def test_progress_counts_tensors(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    old = {"a": torch.zeros(2), "b": torch.zeros(2)}
    ls.export_patch(old, old, tmp_path / "p.safetensors", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
