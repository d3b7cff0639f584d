"""Which batches are collected, how they are counted, and what is said about epochs that are too short."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from learnscope.core.probe import ProbeWarning
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from telemetry.loops import Net, lines, telemetry_in


def epochs(telemetry: TrainingTelemetry, *lengths: int, first: int = 1, **options: Any) -> None:
    model = Net()
    for epoch, length in enumerate(lengths):
        for batch_idx in range(first, first + length):
            telemetry.on_batch_end(model, None, batch_idx, epoch, **options)


def places(telemetry: TrainingTelemetry) -> list[tuple[int, int, int]]:
    return [(line["epoch"], line["batch_idx"], line["global_step"]) for line in lines(telemetry)]


def test_multiples_of_the_interval_in_every_epoch_and_steps_that_go_on(tmp_path: Path) -> None:
    with telemetry_in(tmp_path / "t", every=4) as telemetry:
        epochs(telemetry, 9, 9, 10)
        assert telemetry.global_step == 28
    assert places(telemetry) == [(0, 4, 4), (0, 8, 8), (1, 4, 13), (1, 8, 17), (2, 4, 22), (2, 8, 26)]


def test_batches_numbered_from_zero(tmp_path: Path) -> None:
    with telemetry_in(tmp_path / "t", every=3) as telemetry:
        epochs(telemetry, 5, 2, first=0)
    assert places(telemetry) == [(0, 0, 1), (0, 3, 4), (1, 0, 6)]
    assert lines(telemetry)[0]["weight_delta"]["overall"] is None
    assert lines(telemetry)[1]["weight_delta_since"] == 1


def test_the_default_interval(tmp_path: Path) -> None:
    with TrainingTelemetry(TelemetryConfig(output_dir=tmp_path / "t")) as telemetry:
        epochs(telemetry, 401)
    assert [place[1] for place in places(telemetry)] == [200, 400]


class TestGivenSteps:
    def test_they_are_taken(self, tmp_path: Path) -> None:
        model = Net()
        with telemetry_in(tmp_path / "t") as telemetry:
            for number, step in enumerate([10, 20, 21], 1):
                telemetry.on_batch_end(model, None, number, 0, global_step=step)
            telemetry.on_batch_end(model, None, 4, 0)
        assert [place[2] for place in places(telemetry)] == [10, 20, 21, 22]
        assert [line.get("weight_delta_since") for line in lines(telemetry)] == [None, 10, 20, 21]

    def test_they_may_begin_at_zero(self, tmp_path: Path) -> None:
        model = Net()
        with telemetry_in(tmp_path / "t") as telemetry:
            for step in range(3):
                telemetry.on_batch_end(model, None, step, 0, global_step=step)
        assert [place[2] for place in places(telemetry)] == [0, 1, 2]

    def test_one_that_goes_back_is_counted_on_and_warned_about_once(self, tmp_path: Path) -> None:
        model = Net()
        with telemetry_in(tmp_path / "t") as telemetry:
            telemetry.on_batch_end(model, None, 1, 0, global_step=10)
            with pytest.warns(ProbeWarning, match="global_step=3 after 10") as caught:
                telemetry.on_batch_end(model, None, 2, 0, global_step=3)
                telemetry.on_batch_end(model, None, 3, 0, global_step=11)
                telemetry.on_batch_end(model, None, 4, 0, global_step=0)
            telemetry.on_batch_end(model, None, 5, 0, global_step=50)
        assert len(caught) == 1
        assert [place[2] for place in places(telemetry)] == [10, 11, 12, 13, 50]

    def test_several_epochs_that_each_count_from_one_stay_in_order(self, tmp_path: Path) -> None:
        with telemetry_in(tmp_path / "t", every=2) as telemetry:
            epochs(telemetry, 5, 5, 5)
        steps = [place[2] for place in places(telemetry)]
        assert steps == sorted(set(steps))


class TestShortEpochs:
    def test_the_warning_names_the_numbers_and_comes_once(self, tmp_path: Path) -> None:
        with pytest.warns(ProbeWarning) as caught, telemetry_in(tmp_path / "t", every=200) as telemetry:
            epochs(telemetry, 7, 8, 9)
        (message,) = [str(warning.message) for warning in caught]
        assert "epoch 0 had 7 batches, fewer than collect_every_n=200" in message
        assert "smaller collect_every_n" in message
        assert lines(telemetry) == []

    def test_it_comes_with_the_first_batch_of_the_next_epoch(self, tmp_path: Path) -> None:
        with telemetry_in(tmp_path / "t", every=200) as telemetry:
            epochs(telemetry, 7)
            with pytest.warns(ProbeWarning, match="epoch 0 had 7 batches"):
                telemetry.on_batch_end(Net(), None, 1, 1)

    def test_a_single_short_epoch_is_noticed_when_it_is_closed(self, tmp_path: Path) -> None:
        telemetry = telemetry_in(tmp_path / "t", every=5)
        epochs(telemetry, 4)
        with pytest.warns(ProbeWarning, match="epoch 0 had 4 batches, fewer than collect_every_n=5"):
            telemetry.close()

    def test_epochs_that_are_long_enough_are_not_complained_of(self, tmp_path: Path) -> None:
        with telemetry_in(tmp_path / "t", every=5) as telemetry:
            epochs(telemetry, 5, 6)
        assert len(places(telemetry)) == 2

    def test_neither_is_an_epoch_that_was_broken_off(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt), warnings.catch_warnings():
            warnings.simplefilter("error")
            with telemetry_in(tmp_path / "t", every=5) as telemetry:
                epochs(telemetry, 3)
                raise KeyboardInterrupt

    def test_nor_one_that_was_taken_up_in_the_middle(self, tmp_path: Path) -> None:
        model = Net()
        with telemetry_in(tmp_path / "t", every=5) as telemetry:
            for batch_idx in (6, 7, 8):
                telemetry.on_batch_end(model, None, batch_idx, 3)
            for batch_idx in range(1, 8):
                telemetry.on_batch_end(model, None, batch_idx, 4)
        assert places(telemetry) == [(4, 5, 8)]
