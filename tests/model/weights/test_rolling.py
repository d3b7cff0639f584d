"""The weights in a file: what they are compared with, what is not accepted as them, and how they are replaced."""

from __future__ import annotations

import io
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.rolling import RollingCheckpoint


def weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "small": torch.randn(7, generator=generator),
        "large": torch.randn(1500, 1400, generator=generator),
        "crossed": torch.randn(900, 3, generator=generator).t(),
        "half": torch.randn(40, generator=generator).bfloat16(),
        "wide": torch.randn(5, generator=generator, dtype=torch.float64),
        "scalar": torch.tensor(float(seed)),
        "empty": torch.zeros(0, 3),
        "integers": torch.arange(4) + seed,
    }


def reference(new: dict[str, Tensor], old: dict[str, Tensor]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    pairs = [(new[name].double().numpy(), old[name].double().numpy()) for name in new if name != "integers"]
    return np.array([[((a - b) ** 2).sum() for a, b in pairs], [(b**2).sum() for _, b in pairs]])


def test_distances_are_those_to_the_weights_that_were_kept(tmp_path: Path) -> None:
    kept = RollingCheckpoint(tmp_path / "c.pt", "run")
    old, new, last = weights(1), weights(2), weights(3)
    kept.replace(old, 5)
    for _ in range(2):  # comparing changes nothing in the file
        np.testing.assert_allclose(kept.distances(new).numpy(), reference(new, old), rtol=1e-6)
    assert kept.distances(old)[0].tolist() == [0.0] * 7
    kept.replace(new, 9)
    assert kept.step == 9
    np.testing.assert_allclose(kept.distances(last).numpy(), reference(last, new), rtol=1e-6)


def test_what_is_kept_is_a_copy(tmp_path: Path) -> None:
    kept, now = RollingCheckpoint(tmp_path / "c.pt", "run"), weights(1)
    kept.replace(now, 1)
    now["small"].add_(2.0)
    assert kept.distances(now)[0, 0].item() == pytest.approx(4 * 7)


def test_the_file_holds_the_weights_bit_for_bit(tmp_path: Path) -> None:
    now = weights(4)
    RollingCheckpoint(tmp_path / "c.pt", "a run").replace(now, 12)
    body = torch.load(tmp_path / "c.pt", weights_only=True)
    assert (body["run"], body["step"]) == ("a run", 12)
    del now["integers"]
    assert body["model"].keys() == now.keys()
    assert all(torch.equal(body["model"][name], value) for name, value in now.items())
    assert all(body["model"][name].dtype == value.dtype for name, value in now.items())


def test_parameters_that_are_trained_and_share_memory(tmp_path: Path) -> None:
    """Views of one storage, as flattened parameters are; and gradients are not written."""
    storage = torch.randn(100)
    now: dict[str, Tensor] = {"a": nn.Parameter(storage[:40]), "b": nn.Parameter(storage[40:].view(6, 10))}
    kept = RollingCheckpoint(tmp_path / "c.pt", "run")
    kept.replace(now, 1)
    storage.add_(1.0)
    assert kept.distances(now)[0].tolist() == pytest.approx([40.0, 60.0])
    assert not any(value.requires_grad for value in torch.load(tmp_path / "c.pt", weights_only=True)["model"].values())


class TestTakingUp:
    def test_a_file_of_the_same_run(self, tmp_path: Path) -> None:
        RollingCheckpoint(tmp_path / "c.pt", "run").replace(weights(1), 5)
        again = RollingCheckpoint(tmp_path / "c.pt", "run")
        assert again.step is None
        assert again.take_up(weights(2), 5) is None
        assert again.step == 5
        np.testing.assert_allclose(again.distances(weights(2)).numpy(), reference(weights(2), weights(1)), rtol=1e-6)

    def test_no_file(self, tmp_path: Path) -> None:
        kept = RollingCheckpoint(tmp_path / "c.pt", "run")
        assert kept.take_up(weights(), 3) is None
        assert kept.step is None

    def test_what_is_not_taken_up(self, tmp_path: Path) -> None:
        path = tmp_path / "c.pt"
        RollingCheckpoint(path, "run").replace(weights(1), 5)
        fewer, other = weights(), weights()
        del fewer["small"]
        other["small"] = torch.zeros(8)
        cases = [
            (RollingCheckpoint(path, "other"), weights(), 9, "is of another run"),
            (RollingCheckpoint(path, "run"), weights(), 4, "step 5, which lies ahead of step 4"),
            (RollingCheckpoint(path, "run"), fewer, 9, "other parameters"),
            (RollingCheckpoint(path, "run"), other, 9, "other parameters"),
        ]
        for kept, parameters, step, words in cases:
            reason = kept.take_up(parameters, step)
            assert reason is not None
            assert words in reason
            assert str(path) in reason
            assert kept.step is None


class TestComparing:
    def test_a_rebuilt_model_is_refused_by_the_parameters_name(self, tmp_path: Path) -> None:
        kept = RollingCheckpoint(tmp_path / "c.pt", "run")
        kept.replace(weights(), 5)
        other = weights() | {"half": torch.zeros(41, dtype=torch.bfloat16)}
        with pytest.raises(ValueError, match="parameter half is not what it was at step 5"):
            kept.distances(other)
        with pytest.raises(ValueError, match="parameter extra is not what it was"):
            kept.distances(weights() | {"extra": torch.zeros(1)})

    def test_a_file_that_is_gone_or_not_ours_any_more(self, tmp_path: Path) -> None:
        path = tmp_path / "c.pt"
        kept = RollingCheckpoint(path, "run")
        kept.replace(weights(), 5)
        RollingCheckpoint(path, "other").replace(weights(), 5)
        with pytest.raises(CheckpointError, match="no longer holds the weights of step 5"):
            kept.distances(weights())
        torch.save({"model": {"small": 3}, "run": "run", "step": 5}, path)
        with pytest.raises(CheckpointError, match="beside weights"):
            kept.distances(weights())
        path.unlink()
        with pytest.raises(CheckpointError, match=r"c\.pt"):
            kept.distances(weights())


def test_a_file_that_does_not_fit_on_the_disk_leaves_the_old_one(tmp_path: Path) -> None:
    kept = RollingCheckpoint(tmp_path / "c.pt", "run")
    kept.replace(weights(1), 5)
    before = (tmp_path / "c.pt").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError):
            kept.replace(weights(2), 9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept.step == 5
    assert (tmp_path / "c.pt").read_bytes() == before
    assert os.listdir(tmp_path) == ["c.pt"], "no temporary file is left"
    np.testing.assert_allclose(kept.distances(weights(2)).numpy(), reference(weights(2), weights(1)), rtol=1e-6)


def test_a_write_that_the_system_cuts_short_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call writes 2 GiB at most, and the rest must follow in others; here it is 64 kB."""

    class Bites(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[:65_536])

    def opened(self: Path, mode: str, buffering: int = -1) -> object:
        raw = Bites(self, mode.replace("b", ""))
        return raw if buffering == 0 else io.BufferedRandom(raw)

    now = weights(1)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        RollingCheckpoint(tmp_path / "c.pt", "run").replace(now, 1)
    body = torch.load(tmp_path / "c.pt", weights_only=True)
    assert torch.equal(body["model"]["large"], now["large"])


def test_checksums_are_written_again_by_everybody_else(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    RollingCheckpoint(tmp_path / "c.pt", "run").replace(weights(), 1)
    assert torch.serialization.get_crc32_options() == before


def test_a_file_of_somebody_else_is_set_aside_and_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "last_checkpoint.pt"
    for content in (b"my own", b"my other"):
        path.write_bytes(content)
        kept = RollingCheckpoint(path, "run")
        reason = kept.take_up({"w": torch.ones(3)}, 5)
        assert reason is not None
        assert "kept as last_checkpoint.other" in reason
        kept.replace({"w": torch.ones(3)}, 5)
    assert (tmp_path / "last_checkpoint.other.pt").read_bytes() == b"my own"
    assert (tmp_path / "last_checkpoint.other1.pt").read_bytes() == b"my other"


def test_complex_weights_count_with_both_their_parts(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    old, new = (draw.normal(size=(700, 900)) + 1j * draw.normal(size=(700, 900)) for _ in range(2))
    kept = RollingCheckpoint(tmp_path / "c.pt", "run")
    kept.replace({"c": torch.from_numpy(old), "integers": torch.arange(3)}, 1)
    found = kept.distances({"c": torch.from_numpy(new), "integers": torch.arange(3)})
    assert found.tolist() == pytest.approx(np.array([[(abs(new - old) ** 2).sum()], [(abs(old) ** 2).sum()]]), rel=1e-9)
    assert torch.load(tmp_path / "c.pt", weights_only=True)["model"]["c"].dtype == torch.complex128


def test_weights_that_are_parts_of_one_memory_reserve_it_once(tmp_path: Path) -> None:
    """300 views of 600 kB: 180 MB would not be there on a small disk."""
    memory = torch.randn(300 * 500)
    views = {f"w{n}": part for n, part in enumerate(memory.split(500))}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        kept = RollingCheckpoint(tmp_path / "c.pt", "run")
        kept.replace(views, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    before = memory.double().clone()
    memory.mul_(1.5)
    expected = ((memory.double() - before) ** 2).view(300, 500).sum(1)
    torch.testing.assert_close(kept.distances(views)[0], expected, rtol=1e-6, atol=0)
