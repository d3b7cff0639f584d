"""Trainings of two processes: one rank may watch alone, rank 0 writes, and models that are spread out are refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import learnscope as ls
from forked import start_program
from learnscope.session.ranks import rank_and_size

PROGRAM = Path(__file__).with_name("two_ranks.py")
LIMIT = 150.0
"""Seconds for both ranks on a busy machine; on an idle one they take ten."""

Scenes = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> dict[str, Scenes]:
    """What both ranks reported, by scene; a rank that hangs is an error with the name of the last scene that ended."""
    outs = [folder / f"out-{rank}" for rank in (0, 1)]
    errors = [folder / f"error-{rank}" for rank in (0, 1)]
    processes = [
        start_program(PROGRAM, str(rank), str(folder), folder=folder, out=outs[rank], error=errors[rank])
        for rank in (0, 1)
    ]
    end = time.monotonic() + LIMIT
    for process in processes:
        process.join(max(0.1, end - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    printed = [out.read_text() if out.exists() else "" for out in outs]
    trouble = "\n".join(path.read_text()[-3000:] for path in errors if path.exists())
    assert codes == [0, 0], f"exit codes {codes} (None: it hangs), after {printed[0][-200:]}\n{trouble}"
    scenes: dict[str, Scenes] = {}
    for line in (line for text in printed for line in text.splitlines() if line.startswith('{"scene"')):
        scene = json.loads(line)
        scenes.setdefault(scene.pop("scene"), []).append(scene)
    return scenes


def test_one_rank_may_watch_alone_with_every_probe(ranks: dict[str, Scenes]) -> None:
    first, second = ranks["alone"]
    assert len(first["probes"]) > 25
    for way in ("plain", "accumulate", "compiled"):
        assert first[way]["same"], way
        assert second[way]["same"], way
        assert first[way]["errors"] == []
    assert first["plain"]["recorded"] == sorted(first["probes"])


def test_of_all_ranks_with_one_folder_rank_0_writes(ranks: dict[str, Scenes], folder: Path) -> None:
    first, second = ranks["together"]
    assert first["same"] == second["same"] == [True] * 3
    assert first["steps"] == second["steps"]  # those of a resumed run too
    assert first["steps"][-2:] == [3, 9]
    assert first["path"] == ["runs/a"] * 3
    assert all(first["run"])
    assert first["silent"] is None
    assert first["sunk"] > 0
    assert first["states"] == [False] * 3
    assert second["path"] == ["None"] * 3
    assert second["run"] == [0] * 3
    assert second["states"] == [True] * 3  # save_state has nothing to save
    assert second["silent"] == "rank 1 of 2 records nothing: rank 0 does"
    assert second["findings"] == 0
    assert "sunk" not in second
    assert first["manual"] == second["manual"] == 2
    assert first["folders"] == ["a", "manual"]
    run = ls.open_run(folder / "runs/a")
    assert run.problems == []
    assert len(run.manifest["attempts"]) == 3
    assert run.frame(name="rank").value.eq(0.0).all()


def test_before_there_is_a_group_the_launcher_tells_the_rank(ranks: dict[str, Scenes]) -> None:
    assert ranks["launched"] == [{"path": "launched", "records": 1}, {"path": "None", "records": 0}]


def test_in_memory_every_rank_records_for_itself(ranks: dict[str, Scenes]) -> None:
    first, second = ranks["in_memory"]
    assert first["norms"] == second["norms"]  # of the averaged gradient
    assert len(first["norms"]) == 6
    assert first["losses"] != second["losses"]
    assert (set(first["rank"]), set(second["rank"])) == ({0.0}, {1.0})


def test_the_noise_scale_is_that_of_a_rank_s_own_micro_batches(ranks: dict[str, Scenes]) -> None:
    for scene in ranks["noise"]:
        alone, averaged = scene["synchronised False"], scene["synchronised True"]
        assert alone["names"] == ["noise_scale"]  # S and |G|² would be in units that the averaged gradient hides
        assert alone["values"] == pytest.approx(alone["reference"], rel=1e-4)
        assert averaged["names"] == []  # the sum was averaged between the micro-batches


def test_other_ways_in_write_on_rank_0(ranks: dict[str, Scenes]) -> None:
    first, second = ranks["doors"]
    assert first == second
    assert sorted(first["written"]) == ["analysis", "audit", "flow", "replay", "telemetry"]
    assert all(first["written"].values())
    assert first["audit"] == first["replay"] == 1


def test_shards_are_refused_before_anything_is_written(ranks: dict[str, Scenes]) -> None:
    for rank, scene in enumerate(ranks["sharded"]):
        assert len(scene["refusals"]) == 8 * 16 + 2
        for door, message in scene["refusals"].items():
            if rank == 1 and door.endswith(": telemetry"):
                assert message == "accepted"  # it does not look at models there
                continue
            assert message.startswith("ShardedModelError: this model's parameters are shards: "), (door, message)
            assert "over 2 processes" in message
            assert "get_model_state_dict" in message
            assert "ls.replay or ls.audit" in message
        assert scene["left"] == []


def test_a_group_of_one_is_a_single_process(ranks: dict[str, Scenes]) -> None:
    for scene in ranks["single"]:
        assert scene["equal"] == {"plain": True, "DDP": True, "FSDP1": True}
        assert scene["numbers"] > 50
        assert scene["folders"] == ["DDP", "FSDP1", "plain"]
        assert "leave out fully_shard" in scene["dtensor"]


@pytest.mark.parametrize(
    ("rank", "size", "expected"),
    [
        ("1", "2", (1, 2)),
        ("0", "2", (0, 2)),
        ("1", "1", (0, 1)),
        ("1", "", (0, 1)),
        ("one", "2", (0, 1)),
        ("", "", (0, 1)),
    ],
)
def test_what_a_launcher_says(rank: str, size: str, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    assert rank_and_size() == expected


def test_partitions_of_deepspeed_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    model.weight.ds_id, model.weight.ds_tensor = 0, torch.empty(3)  # what ZeRO-3 puts on a parameter
    with pytest.raises(ValueError, match="weight is partitioned by DeepSpeed ZeRO-3"):
        ls.watch(model, run=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
