"""Distances of weights, against float64 NumPy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from comparison.made import made, small_model, train
from learnscope.model.weights.distance import weight_distance
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry


def norms(new: list[Tensor], old: list[Tensor]) -> tuple[float, float, float]:
    """Distance, relative distance and largest difference."""
    after, before = (np.concatenate([t.double().numpy().ravel() for t in side]) for side in (new, old))
    change = np.abs(after - before)
    return float(np.sqrt((change**2).sum())), float(np.sqrt((change**2).sum() / (before**2).sum())), float(change.max())


def test_layers_and_the_whole_against_numpy(tmp_path: Path) -> None:
    models = [train(tmp_path / "a", save_at=[12]), train(tmp_path / "b", lr=0.3, save_at=[12])]
    weights = ls.compare([tmp_path / "a", tmp_path / "b"]).weights
    assert weights.reference == "a"
    assert dict(weights.steps) == {"a": 12, "b": 12}
    found = weights.distances["b"]
    old, new = (dict(model.named_parameters()) for model in models)
    assert [one.layer for one in found.layers] == ["0", "2"]
    for one in (*found.layers, found.whole):
        names = [name for name in old if one.layer == "model" or name.startswith(f"{one.layer}.")]
        after, before = [new[n].detach() for n in names], [old[n].detach() for n in names]
        assert (one.distance, one.relative, one.largest) == pytest.approx(norms(after, before), rel=1e-6)
        assert one.entries == sum(old[name].numel() for name in names)
        assert one.different == sum(int((a != b).sum()) for a, b in zip(after, before, strict=True))
    frame = weights.frame()
    assert frame["layer"].tolist() == ["0", "2", "model"]
    assert frame["relative"].tolist() == [one.relative for one in (*found.layers, found.whole)]


def test_the_last_measured_step_of_the_last_state_counts(tmp_path: Path) -> None:
    train(tmp_path / "a", save_at=[4, 12])
    train(tmp_path / "b", save_at=[4, 7])  # measured every second step: 6
    train(tmp_path / "c", steps=6, save_at=[6])
    weights = ls.compare([tmp_path / name for name in "abc"]).weights
    assert dict(weights.steps) == {"a": 12, "b": 6, "c": 6}
    again = ls.compare([tmp_path / name for name in "bc"]).weights
    assert again.distances["c"].whole.distance == 0.0  # the same training, up to there
    assert again.distances["c"].whole.different == 0
    assert weights.distances["b"].whole.distance > 0


def test_states_that_were_superseded_do_not_count(tmp_path: Path) -> None:
    """A run that went to step 8, was resumed at 4 and went to 6: the state of step 8 is of what did not happen."""
    train(tmp_path / "a", steps=8, save_at=[4, 8])
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probes = [ls.Loss(), ls.GradientFlow(every=1), ls.ParameterChange(every=2)]
    with ls.watch(model, optimizer, run=tmp_path / "a", probes=probes, resume=True, step=4) as w:
        for _ in range(2):
            loss = model(torch.ones(2, 6)).sum()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
        w.save_state()
    assert (tmp_path / "a" / "state" / "step-0000000008.safetensors").exists()
    train(tmp_path / "b", steps=6, save_at=[6])
    weights = ls.compare([tmp_path / "a", tmp_path / "b"]).weights
    assert dict(weights.steps) == {"a": 6, "b": 6}
    other = train(None, steps=6)
    pairs = list(zip(other.parameters(), model.parameters(), strict=True))
    expected = norms([n.detach() for n, _ in pairs], [o.detach() for _, o in pairs])
    assert weights.distances["b"].whole.distance == pytest.approx(expected[0], rel=1e-6)


def test_a_run_without_weights_is_named_with_the_cure(tmp_path: Path) -> None:
    train(tmp_path / "a", save_at=[12])
    train(tmp_path / "b")
    train(tmp_path / "c", probes=[ls.Loss()], save_at=[12])  # a state, with no weights in it
    weights = ls.compare([tmp_path / name for name in "abc"]).weights
    assert not weights.distances
    assert "w.save_state()" in weights.missing["b"]
    assert "w.save_state()" in weights.missing["c"]
    alone = ls.compare([tmp_path / "a", tmp_path / "b"]).weights
    assert alone.missing["a"] == "it kept weights, but no other run did"


def test_rounded_copies_and_damaged_files_are_told(tmp_path: Path) -> None:
    train(tmp_path / "a", save_at=[12])
    rounded = [ls.ParameterChange(every=2, snapshot_dtype="float16")]
    train(tmp_path / "b", probes=rounded, save_at=[12])
    train(tmp_path / "c", save_at=[12])
    next((tmp_path / "c" / "state").iterdir()).write_bytes(b"no state")
    train(tmp_path / "d", save_at=[12])
    weights = ls.compare([tmp_path / name for name in "abcd"]).weights
    assert "another dtype" in weights.missing["b"]
    assert "is damaged" in weights.missing["c"]
    assert list(weights.distances) == ["d"]


def test_compiled_and_plain_models_have_the_same_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    train(tmp_path / "a", save_at=[12], model=small_model())
    torch.manual_seed(0)
    train(tmp_path / "b", save_at=[12], model=torch.compile(small_model(), backend="eager"))
    found = ls.compare([tmp_path / "a", tmp_path / "b"]).weights.distances["b"]
    assert found.only_reference == found.only_other == ()
    assert found.whole.distance == 0.0


def telemetry_folder(folder: Path, weights: dict[str, Tensor], step: int, run: str = "1", owner: str = "1") -> Path:
    """As telemetry leaves it: a run folder with the weights of the last measurement."""
    one = made({1: 1.0}, folder)
    one.manifest |= {"source": "telemetry", "id": run, "config": {"collect_every_n": 10}}
    one.backend.put_manifest(one.manifest)
    torch.save({"model": weights, "run": owner, "step": step}, folder / "last_checkpoint.pt")
    return folder


def test_the_rolling_checkpoint_of_telemetry(tmp_path: Path) -> None:
    old, new = {"h.0.w": torch.tensor([3.0, 4.0])}, {"h.0.w": torch.tensor([3.0, 4.5])}
    first, second = telemetry_folder(tmp_path / "a", old, 70), telemetry_folder(tmp_path / "b", new, 80)
    comparison = ls.compare([first, second])
    assert dict(comparison.weights.steps) == {"a": 70, "b": 80}
    [layer] = comparison.weights.distances["b"].layers
    assert (layer.layer, layer.distance, layer.relative) == ("h.0", 0.5, 0.1)
    stale = telemetry_folder(tmp_path / "c", new, 80, run="2", owner="1")  # left by an earlier run in that folder
    assert "w.save_state()" in ls.compare([first, second, stale]).weights.missing["c"]
    torch.save([1], tmp_path / "b" / "last_checkpoint.pt")
    assert "no weights with their step" in ls.compare([first, second]).weights.missing["b"]


def test_what_telemetry_writes_itself(tmp_path: Path) -> None:
    def trained(name: str, lr: float) -> dict[str, Tensor]:
        """The weights at the last measurement, batch 8."""
        torch.manual_seed(0)
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        config = TelemetryConfig(collect_every_n=4, output_dir=tmp_path / name, track_holdout_logits=False)
        telemetry = TrainingTelemetry(config)
        kept = {}
        for batch in range(10):
            inputs = torch.randn(8, 6)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            telemetry.on_batch_end(model, optimizer, batch, 0, "cpu", (inputs, torch.zeros(8, dtype=torch.int64)))
            if batch == 8:
                kept = {key: p.detach().clone() for key, p in model.named_parameters()}
        telemetry.close()
        return kept

    old, new = trained("a", 0.1), trained("b", 0.2)
    comparison = ls.compare([tmp_path / "a", tmp_path / "b"])
    assert [one.key for one in comparison.differences] == ["optimizers.0.groups.0.lr"]
    whole = comparison.weights.distances["b"].whole
    expected = norms(list(new.values()), list(old.values()))
    assert (whole.distance, whole.relative, whole.largest) == pytest.approx(expected, rel=1e-6)
    train(tmp_path / "c")
    assert any("a step of telemetry is a batch" in note for note in ls.compare([tmp_path / "a", tmp_path / "c"]).notes)


def test_what_cannot_be_matched_is_named() -> None:
    old = {"a.w": torch.ones(2), "b.w": torch.ones(2, 3), "c.n": torch.tensor([1]), "d.w": torch.ones(1)}
    new = {"a.w": torch.ones(2), "b.w": torch.ones(3, 2), "c.n": torch.tensor([2]), "e.w": torch.ones(1)}
    found = weight_distance(old, new)
    assert (found.only_reference, found.only_other) == (("d.w",), ("e.w",))
    assert found.other_shape == (("b.w", (2, 3), (3, 2)),)
    assert found.not_floating == ("c.n",)
    assert [one.layer for one in found.layers] == ["a"]


def test_awkward_numbers() -> None:
    nan, zero, tiny = torch.tensor([1.0, float("nan")]), torch.zeros(2), torch.full((3,), 1e-30)
    old = {"n.w": torch.ones(2), "z.w": zero, "t.w": tiny, "e.w": torch.empty(0), "h.w": torch.ones(2).bfloat16()}
    new = {"n.w": nan, "z.w": zero + 2, "t.w": 3 * tiny, "e.w": torch.empty(0), "h.w": torch.tensor([1.0, 1.5])}
    layers = {one.layer: one for one in weight_distance(old, new).layers}
    assert (layers["n"].distance, layers["n"].status) == (None, "not finite in 1 of 2 entries")
    assert (layers["z"].distance, layers["z"].relative) == (pytest.approx(8**0.5), None)
    assert layers["z"].status == "the reference's weights are all 0"
    assert layers["t"].relative == pytest.approx(2.0, rel=1e-6)  # its squares are below float32
    assert (layers["e"].distance, layers["e"].status) == (None, "no entries in common")
    assert (layers["h"].distance, layers["h"].different) == (0.5, None)  # bits of two dtypes are not compared
    big = {"a.w": torch.full((2,), 1e200, dtype=torch.float64)}
    assert weight_distance(big, {"a.w": -big["a.w"]}).whole.status == "squares too large for float64"
    assert weight_distance({}, {}).whole.status == "no entries in common"


def test_tied_weights_count_once_and_layers_follow_their_numbers() -> None:
    def tied(value: float) -> dict[str, Tensor]:
        model = nn.Module()
        model.emb, model.head = nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)
        nn.init.constant_(model.emb.weight, value)
        model.head.weight = model.emb.weight
        return dict(model.state_dict())

    assert weight_distance(tied(1.0), tied(2.0)).whole.entries == 8
    many = {f"h.{n}.w": torch.ones(1) for n in (10, 9, 1)}
    assert [one.layer for one in weight_distance(many, many).layers] == ["h.1", "h.9", "h.10"]
    assert [one.layer for one in weight_distance(many, many, ["h.9", "h.1", "h.10"]).layers] == ["h.9", "h.1", "h.10"]


def test_without_weights_torch_is_not_imported(tmp_path: Path) -> None:
    for name in "ab":
        made({1: 1.0, 2: 2.0}, tmp_path / name).backend.close()
    code = (
        "import sys; from learnscope.cli import main;"
        "assert main(['compare', *sys.argv[1:3], '--out', sys.argv[3]]) == 0;"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    arguments = [str(tmp_path / name) for name in ("a", "b", "out")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, timeout=60, capture_output=True)
    assert (tmp_path / "out" / "compare.md").exists()
