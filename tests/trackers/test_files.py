"""Files of the trackers: what they hold, what goes on from them, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor

import learnscope as ls
from learnscope.core.moment import NotAvailable
from learnscope.trackers import GradientFlowTracker, SpectralTracker, TrackerFileError
from model.adapters.adapted import FAMILIES, Adapted, adapted
from seeds.tiny import language_model
from trackers.tracked import FIRST, MODULES, train

Tracker = type[SpectralTracker] | type[GradientFlowTracker]
KINDS: list[Tracker] = [SpectralTracker, GradientFlowTracker]


def both(one: Adapted, steps: range, folder: Path | None = None) -> tuple[SpectralTracker, GradientFlowTracker]:
    spectral = SpectralTracker(one.model, 1, folder, optimizer=one.optimizer)
    gradients = GradientFlowTracker(one.model, 1, folder, optimizer=one.optimizer)
    train(one, steps, gradients.log_step, spectral.log_step)
    return spectral, gradients


def histories(tracker: SpectralTracker | GradientFlowTracker) -> dict[str, Any]:
    return {name: tracker.get_layer_history(name) for modules in tracker.modules.values() for name in modules}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_loaded_is_what_was_saved(family: str, tmp_path: Path) -> None:
    for tracker in both(adapted(family), range(3), tmp_path):
        path = tracker.save()
        loaded = type(tracker).load(path)
        assert histories(loaded) == histories(tracker)
        assert loaded.get_summary_stats() == tracker.get_summary_stats()
        assert loaded.steps == [0, 1, 2]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "gradient_flow.pt", "gradient_flow_summary.json", "spectral_history.pt", "spectral_history_summary.json",
    ]  # fmt: skip


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool, Tensor)


def test_torch_reads_the_file_and_finds_plain_things(tmp_path: Path) -> None:
    spectral, gradients = both(adapted("adalora"), range(2), tmp_path)
    for tracker in (spectral, gradients):
        body = torch.load(tracker.save(), weights_only=True)
        assert plain(body)
        assert (body["format"], body["version"]) == ("learnscope.trackers", 1)
        assert body["kind"] == type(tracker).__name__
        assert body["history"]["steps"] == [0, 1]
        assert body["history"]["adapters"]["default"]["modules"] == MODULES
    ranks = torch.load(spectral.save(), weights_only=True)["history"]["adapters"]["default"]["numbers"]["rank"]
    assert ranks.tolist() == [[4.0, 4.0]] * 6


def test_the_summary_beside_it_is_strict_json(tmp_path: Path) -> None:
    spectral, gradients = both(adapted("ia3"), range(2))
    for tracker in (spectral, gradients):
        tracker.save(tmp_path / "deep" / "mine.pt")
        text = (tmp_path / "deep" / "mine_summary.json").read_text()
        body = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
        assert body == tracker.get_summary_stats()
    (tmp_path / "deep" / "mine_summary.json").unlink()
    spectral.save(tmp_path / "deep" / "mine.pt", summary=False)
    assert not (tmp_path / "deep" / "mine_summary.json").exists()


@pytest.mark.parametrize("family", ["lora", "pissa", "milora", "adalora"])
def test_going_on_from_a_file_is_as_if_nothing_had_been_saved(family: str, tmp_path: Path) -> None:
    whole = adapted(family)
    one, two = both(whole, range(6))
    first = adapted(family)
    for tracker in both(first, range(3), tmp_path):
        tracker.save()
    # another process: no factors are remembered of a model that is made anew
    model, optimizer = copy.deepcopy((first.model, first.optimizer))
    later = Adapted(family, model, optimizer, first.base, first.began)
    spectral = SpectralTracker.load(tmp_path / "spectral_history.pt", model, optimizer=optimizer)
    gradients = GradientFlowTracker.load(tmp_path / "gradient_flow.pt", model, optimizer=optimizer)
    train(later, range(3, 6), gradients.log_step, spectral.log_step)
    assert histories(spectral) == histories(one)
    assert histories(gradients) == histories(two)
    turned = [history["left_drift/first"][-1] for history in histories(spectral).values()]
    assert any(drift is not None and drift > 0 for drift in turned)
    assert spectral.save() == tmp_path / "spectral_history.pt"
    assert SpectralTracker.load(tmp_path / "spectral_history.pt").steps == list(range(6))


def test_a_file_saved_from_a_loaded_tracker_still_goes_on(tmp_path: Path) -> None:
    one = adapted("lora")
    spectral, _ = both(one, range(3), tmp_path)
    again = SpectralTracker.load(spectral.save()).save(tmp_path / "copy.pt")
    going = SpectralTracker.load(again, one.model)
    train(one, range(3, 4), after_step=going.log_step)
    assert going.get_layer_history(FIRST)["left_drift/previous"][-1] is not None


def test_factors_as_they_stand_are_not_taken_for_the_beginning(tmp_path: Path) -> None:
    one = adapted("pissa")
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterSpectrum(every=1)], strict=True) as w:
        train(one, range(3))
    path = SpectralTracker.from_run(w.run).save(tmp_path / "s.pt")  # a run's numbers, without a probe's memory
    going = SpectralTracker.load(path, copy.deepcopy(one.model))
    going.log_step(4)
    history = going.get_layer_history(FIRST)
    assert history["steps"] == [1, 2, 3, 4]
    assert [value is None for value in history["nuclear_norm"]] == [False, False, False, True]
    assert "the factors it began with were not kept" in history["reasons"]["nuclear_norm"][4]


def test_without_a_model_there_is_nothing_to_log(tmp_path: Path) -> None:
    spectral, gradients = both(adapted("lora"), range(1), tmp_path)
    for tracker in (spectral, gradients):
        loaded = type(tracker).load(tracker.save())
        with pytest.raises(NotAvailable, match=rf"no model to look at.*{type(tracker).__name__}\.load\(path, model\)"):
            loaded.log_step(1)
        assert loaded.steps == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_history_is_saved_and_loaded(kind: Tracker, tmp_path: Path) -> None:
    path = kind(adapted("lora").model, save_dir=tmp_path).save()
    summary = kind.load(path).get_summary_stats()
    assert summary["total_steps_logged"] == 0
    assert "no step has been logged" in summary["note"]


def test_without_a_place_saving_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(ValueError, match=r"no place to save to: save\(path\), or make the tracker with save_dir="):
            kind(adapted("lora").model).save()


def test_the_other_trackers_file_is_refused_with_the_right_class(tmp_path: Path) -> None:
    spectral, gradients = both(adapted("lora"), range(1), tmp_path)
    with pytest.raises(TrackerFileError, match=r"saved by GradientFlowTracker, .*: use GradientFlowTracker\.load"):
        SpectralTracker.load(gradients.save())
    with pytest.raises(TrackerFileError, match=r"use SpectralTracker\.load"):
        GradientFlowTracker.load(spectral.save())


class Opens:
    """What a pickle may hold: reading it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_is_refused_and_not_run(archive: bool, tmp_path: Path) -> None:
    path, trap = tmp_path / "bad.pt", tmp_path / "trap"
    if archive:
        torch.save({"format": "learnscope.trackers", "trap": Opens(trap)}, path)
    else:
        path.write_bytes(pickle.dumps(Opens(trap)))
    with pytest.raises(TrackerFileError, match=r"pickle.*can run code.*Save the tracker anew"):
        SpectralTracker.load(path)
    assert not trap.exists()


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    spectral, _ = both(adapted("lora"), range(2), tmp_path)
    whole = spectral.save().read_bytes()
    path = tmp_path / "other.pt"
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(TrackerFileError, match=r"only a part of one|a pickle"):
            SpectralTracker.load(path)
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(TrackerFileError, match="was not written by a tracker's save"):
        SpectralTracker.load(path)
    with pytest.raises(FileNotFoundError, match="no tracker's file"):
        SpectralTracker.load(tmp_path / "nowhere.pt")
    with pytest.raises(FileNotFoundError, match="no tracker's file"):
        SpectralTracker.load(tmp_path)


def changed(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        *path, last = key.split("/")
        for part in path:
            body = body[part]
        body[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("version", 2), r"version 2 of this format; this learnscope reads up to 1\. Upgrade learnscope"),
        (changed("version", None), "version None"),
        (changed("options", {"log_frequency": 0}), "damaged"),
        (changed("options", {"unheard_of": 1}), "damaged"),
        (changed("options", 3), "damaged"),
        (changed("history", []), "damaged"),
        (changed("history/steps", [0]), "damaged"),
        (changed("history/steps", ["0", "1"]), "damaged"),
        (changed("history/texts", []), "damaged"),
        (changed("history/adapters/default/modules", ["one"]), "damaged"),
        (changed("history/adapters/default/numbers/rank", torch.zeros(2, 2)), "damaged"),
        (changed("history/adapters/default/numbers", None), "damaged"),
        (changed("states", [1]), "damaged"),
    ],
)
def test_a_file_that_does_not_fit_together_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    spectral, _ = both(adapted("lora"), range(2), tmp_path)
    body = torch.load(spectral.save(), weights_only=True)
    change(body)
    torch.save(body, tmp_path / "changed.pt")
    with pytest.raises(TrackerFileError, match=message):
        SpectralTracker.load(tmp_path / "changed.pt")


def test_a_model_that_lacks_the_files_modules_is_refused(tmp_path: Path) -> None:
    spectral, gradients = both(adapted("lora"), range(1), tmp_path)
    smaller = peft.get_peft_model(language_model(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    renamed = peft.get_peft_model(language_model(), peft.LoraConfig(r=2, target_modules=["q_proj"]), adapter_name="b")
    for tracker in (spectral, gradients):
        path = tracker.save()
        with pytest.raises(TrackerFileError, match=r"model\.layers\.0\.self_attn\.v_proj with an adapter 'default'"):
            type(tracker).load(path, smaller)
        with pytest.raises(TrackerFileError, match="lacks"):
            type(tracker).load(path, renamed)
        with pytest.raises(TrackerFileError, match="lacks"):
            type(tracker).load(path, language_model())
        assert type(tracker).load(path).steps == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_that_fails_leaves_the_files_as_they_were(
    kind: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = adapted("lora")
    tracker = both(one, range(2), tmp_path)[KINDS.index(kind)]
    tracker.save()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    train(one, range(2, 3), tracker.log_step if kind is GradientFlowTracker else lambda step: None)

    def disk_full(body: Any, file: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", disk_full)
        with pytest.raises(OSError, match="No space left"):
            tracker.save()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert kind.load(tracker.save()).steps == tracker.steps


def test_a_run_gives_the_same_view(tmp_path: Path) -> None:
    one = adapted("dora")
    spectral = SpectralTracker(one.model, 2, optimizer=one.optimizer)
    gradients = GradientFlowTracker(one.model, 2, optimizer=one.optimizer)
    probes = [ls.AdapterSpectrum(every=2), ls.AdapterGradients(every=2)]
    with ls.watch(one.model, one.optimizer, run=tmp_path / "run", probes=probes, strict=True) as w:
        # the run's first step is its number 1
        train(one, range(4), lambda step: gradients.log_step(step + 1), lambda step: spectral.log_step(step + 1))
    for run in (w.run, tmp_path / "run", str(tmp_path / "run")):
        assert histories(SpectralTracker.from_run(run)) == histories(spectral)
        assert histories(GradientFlowTracker.from_run(run)) == histories(gradients)
    copied = SpectralTracker.load(SpectralTracker.from_run(w.run).save(tmp_path / "s.pt"))
    assert histories(copied) == histories(spectral)
    assert copied.steps == [2, 4]


def test_superseded_measurements_of_a_run_are_left_out(tmp_path: Path) -> None:
    one = adapted("lora")
    options: dict[str, Any] = {"run": tmp_path / "run", "probes": [ls.AdapterSpectrum(every=1)], "strict": True}
    with ls.watch(one.model, one.optimizer, **options):
        train(one, range(4))
    first = SpectralTracker.from_run(tmp_path / "run")
    with pytest.warns(ls.ProbeWarning, match="what AdapterSpectrum remembered is lost"):
        w = ls.watch(one.model, one.optimizer, resume=True, step=2, **options)
    with w:
        train(one, range(4, 5))
    second = SpectralTracker.from_run(tmp_path / "run")
    assert (first.steps, second.steps) == ([1, 2, 3, 4], [1, 2, 3])
    old, new = (tracker.get_layer_history(FIRST)["nuclear_norm"] for tracker in (first, second))
    assert old[:2] == new[:2]
    assert old[2] != new[2]


def test_a_run_of_other_probes_is_refused() -> None:
    one = adapted("lora")
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        train(one, range(1))
    with pytest.raises(ls.RunError, match=r"no records for a SpectralTracker: watch it with ls\.AdapterSpectrum\(\)"):
        SpectralTracker.from_run(w.run)
    assert GradientFlowTracker.from_run(w.run).steps == [1]


def test_a_step_at_which_the_probe_failed_says_so(tmp_path: Path) -> None:
    one = adapted("lora")
    with ls.watch(one.model, one.optimizer, run=tmp_path / "run", probes=[ls.AdapterSpectrum(every=1)], strict=True):
        train(one, range(2))
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    broken = json.loads(lines[1]) | {"tables": [], "error": "RuntimeError: it went wrong"}
    broken.pop("arrays")
    (tmp_path / "run" / "records.jsonl").write_text(f"{lines[0]}\n{json.dumps(broken)}\n{lines[1][:50]}")
    tracker = SpectralTracker.from_run(tmp_path / "run")
    for view in (tracker, SpectralTracker.load(tracker.save(tmp_path / "s.pt"))):
        history = view.get_layer_history(FIRST)
        assert history["steps"] == [1, 2]
        assert history["nuclear_norm"][0] > 0
        assert history["nuclear_norm"][1] is None
        assert history["reasons"]["nuclear_norm"] == {2: "RuntimeError: it went wrong"}
        summary = view.get_summary_stats()
        assert summary["latest_step"] == 1  # the last that measured anything
        assert summary["failed_steps"] == {"2": "RuntimeError: it went wrong"}


@pytest.mark.parametrize("family", ["lora", "dora", "adalora", "vera"])
def test_a_tracked_training_is_the_training(family: str, tmp_path: Path) -> None:
    def trained(tracking: bool) -> tuple[list[float], dict[str, Tensor], Tensor]:
        one = adapted(family)
        if not tracking:
            return train(one, range(5)), one.model.state_dict(), torch.get_rng_state()
        spectral = SpectralTracker(one.model, 1, tmp_path, optimizer=one.optimizer)
        gradients = GradientFlowTracker(one.model, 1, tmp_path, optimizer=one.optimizer)

        def after_step(step: int) -> None:
            spectral.log_step(step)
            spectral.save()
            gradients.save()

        losses = train(one, range(5), gradients.log_step, after_step)
        assert spectral.steps == gradients.steps == list(range(5))
        return losses, one.model.state_dict(), torch.get_rng_state()

    alone, seen = trained(False), trained(True)
    assert alone[0] == seen[0]
    assert alone[1].keys() == seen[1].keys()
    assert all(torch.equal(value, seen[1][name]) for name, value in alone[1].items())
    assert torch.equal(alone[2], seen[2])
