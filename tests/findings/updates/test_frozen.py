"""Parameters that do not move."""

from __future__ import annotations

import pytest

from findings.made_run import MadeRun
from learnscope.findings import Cuts
from learnscope.findings.updates.frozen import frozen


def kinds(run: MadeRun, **cuts: int) -> list[str]:
    return [finding.kind for finding in frozen(run.reader, Cuts(**cuts))]  # type: ignore[arg-type]


def test_a_run_in_which_all_moves() -> None:
    run = MadeRun()
    for end in (10, 20, 30):
        run.change((end - 10, end), {"a": 0.9, "b": 1e-6})
    assert kinds(run) == []


def test_a_tensor_whose_bits_never_change() -> None:
    run = MadeRun()
    for end in (10, 20, 30):
        run.change((end - 10, end), {"a.weight": 0.9, "b.weight": 0.0, "c.weight": 0.2})
    [finding] = frozen(run.reader, Cuts())
    assert finding.kind == "not_moving"
    assert finding.severity == "warning"
    assert finding.scopes == ["b.weight"]
    assert finding.title == "1 trainable tensor held by the optimizer did not change in 30 steps"
    assert "in 3 measurements, between steps 0 and 30, while 2 other tensors moved" in finding.detail
    assert "whether b.weight gets a gradient" in finding.advice
    assert (finding.evidence.n, finding.evidence.first_step, finding.evidence.last_step) == (3, 0, 30)


def test_one_measurement_is_only_information_and_the_cut_can_ask_for_more() -> None:
    run = MadeRun()
    run.change((0, 1), {"a": 0.9, "b": 0.0})
    [finding] = frozen(run.reader, Cuts())
    assert finding.severity == "info"
    assert "1 measurement," in finding.detail
    assert kinds(run, frozen_measurements=2) == []


def test_a_tensor_that_moved_once_moves() -> None:
    run = MadeRun()
    for end in (10, 20, 30):
        run.change((end - 10, end), {"a": 0.9, "b": 0.1 if end == 20 else 0.0})
    assert kinds(run) == []


def test_a_warm_up_in_which_nothing_moves_accuses_nobody() -> None:
    run = MadeRun()
    for end in (1, 2, 3):
        run.change((end - 1, end), {"a": 0.0, "b": 0.0})
    assert kinds(run) == []
    run.change((3, 4), {"a": 0.5, "b": 0.0})
    [finding] = frozen(run.reader, Cuts())
    assert finding.evidence.n == 1  # only the last says anything about b
    run.change((4, 5), {"a": 0.5, "b": 0.5})
    assert kinds(run) == []


def test_values_that_were_not_measured_do_not_count_as_zero() -> None:
    run = MadeRun()
    run.change((0, 10), {"a": 0.9, "b": None})
    assert kinds(run) == []


def test_coarse_dtypes_get_their_own_advice() -> None:
    run = MadeRun()
    run.change((0, 10), {"a": 0.9, "b": 0.0}, dtype="bfloat16")
    [finding] = frozen(run.reader, Cuts())
    assert "bfloat16" in finding.advice


def test_the_advice_follows_the_gradients_where_they_were_recorded() -> None:
    for norm, said in ((0.3, "The layer of b.weight does get gradients"), (0.0, "No gradient other than 0")):
        run = MadeRun()
        run.change((0, 10), {"a.weight": 0.9, "b.weight": 0.0})
        run.gradients(5, {"a": 0.1, "b": norm})
        [finding] = frozen(run.reader, Cuts())
        assert said in finding.advice


def test_without_an_optimizer_none_is_claimed_to_hold_it() -> None:
    run = MadeRun()
    run.manifest["optimizers"] = []
    run.change((0, 10), {"a": 0.9, "b": 0.0})
    assert "held by" not in frozen(run.reader, Cuts())[0].title


def test_outside_the_optimizer() -> None:
    run = MadeRun(trainable_outside_optimizer=["b", "c"], tensors=4)
    [finding] = frozen(run.reader, Cuts())
    assert finding.kind == "not_optimised"
    assert finding.severity == "warning"
    assert finding.title == "2 trainable tensors of 4 in no optimizer"
    assert "not measured" in finding.detail
    run.change((0, 10), {"a": 0.9, "b": 0.0, "c": 0.0})
    [finding] = frozen(run.reader, Cuts())  # and not once more as not moving
    assert "None of them moved in 1 measurement, between steps 0 and 10" in finding.detail


def test_outside_the_optimizer_but_moved_by_something_else() -> None:
    run = MadeRun(trainable_outside_optimizer=["b"])
    run.change((0, 10), {"a": 0.9, "b": 0.4})
    [finding] = frozen(run.reader, Cuts())
    assert finding.severity == "info"
    assert "It is b. It moved all the same" in finding.detail


@pytest.mark.parametrize(
    ("more", "share"), [({}, "80 % of the tensors"), ({"frozen_parameters": 990}, "990 of 1,000 parameters, 99 %")]
)
def test_frozen_on_purpose(more: dict[str, int], share: str) -> None:
    names = [f"base.{i}" for i in range(8)]
    run = MadeRun(frozen=names, tensors=10, parameters=1000, **more)
    run.change((0, 10), {**dict.fromkeys(names, 0.0), "lora_A": 0.9})
    [finding] = frozen(run.reader, Cuts())
    assert finding.kind == "frozen"
    assert finding.severity == "info"
    assert share in finding.title
    assert "base.5 and 2 more" in finding.detail
    assert "None of them changed in 1 measurement" in finding.detail


def test_frozen_and_yet_moving() -> None:
    run = MadeRun(frozen=["base"])
    run.change((0, 10), {"base": 0.1, "head": 0.9})
    run.change((10, 20), {"base": 0.0, "head": 0.9})
    first, second = frozen(run.reader, Cuts())
    assert (first.kind, first.severity, second.kind) == ("frozen_but_moving", "warning", "frozen")
    assert "1 of 2 measurements" in first.detail
    assert "It changed in 2 measurements" in second.detail


@pytest.mark.parametrize(("gradient", "severity"), [(0.5, "info"), (0.0, "warning")])
def test_layers_that_a_schedule_unfreezes(gradient: float, severity: str) -> None:
    run = MadeRun(frozen=["base.weight"])
    run.change((0, 10), {"base.weight": 0.0, "head.kernel": 0.9})
    run.gradients(10, {"base": None, "head": 0.5})
    run.change((10, 20), {"base.weight": 0.3, "head.kernel": 0.9})
    run.gradients(20, {"base": gradient, "head": 0.5})
    finding = next(each for each in frozen(run.reader, Cuts()) if each.kind == "frozen_but_moving")
    assert finding.severity == severity


def test_an_average_of_trained_weights_moves_on_purpose() -> None:
    run = MadeRun(frozen=["target.0.weight"])
    run.change((0, 10), {"target.0.weight": 0.5, "online.0.weight": 0.9})
    assert [finding.severity for finding in frozen(run.reader, Cuts())] == ["info", "info"]


def test_superseded_moves_do_not_count() -> None:
    run = MadeRun()
    run.change((0, 10), {"a": 0.9, "b": 0.0})
    run.change((10, 20), {"a": 0.9, "b": 0.5})
    run.resume(10)
    run.change((10, 20), {"a": 0.9, "b": 0.0})
    [finding] = frozen(run.reader, Cuts())
    assert finding.scopes == ["b"]


def test_that_the_base_of_an_adapter_is_frozen_is_no_news() -> None:
    names = [f"model.layers.{n}.q_proj.base_layer.weight" for n in range(3)]
    run = MadeRun(frozen=names, tensors=10, parameters=1000)
    assert kinds(run) == []
    assert kinds(MadeRun(frozen=[name.replace(".base_layer", "") for name in names], tensors=10)) == ["frozen"]
