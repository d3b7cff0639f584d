"""Named groups of parameters: those of the user, the usual ones, and what a pattern matches."""

from __future__ import annotations

import re
from fnmatch import translate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from learnscope.names import match_parameters
from learnscope.telemetry import GroupError, TelemetryConfig, TrainingTelemetry
from telemetry.loops import Net, lines, pretend_gradients, telemetry_in


def groups_of(folder: Path, model: nn.Module, **options: Any) -> list[str]:
    with telemetry_in(folder, **options) as telemetry:
        telemetry.on_batch_end(model, None, 1, 0)
    return [key for key in lines(telemetry)[0]["gradient_norm"] if key != "overall"]


class TestTheUsersGroups:
    @pytest.mark.parametrize("strict", [True, False])
    def test_a_pattern_that_matches_nothing_is_an_error_that_names_the_layers(
        self, tmp_path: Path, strict: bool
    ) -> None:
        """Also where nothing else may raise: a group of 0.0 for a whole training would be worse."""
        config = TelemetryConfig(collect_every_n=2, output_dir=tmp_path / "t", groups={"tail": ["head", "haed"]})
        with TrainingTelemetry(config, strict=strict) as telemetry:
            telemetry.on_batch_end(Net(), None, 1, 0)  # not a collection yet
            with pytest.raises(GroupError) as raised:
                telemetry.on_batch_end(Net(), None, 2, 0)
        for word in ("'tail'", "'haed'", "Net", "backbone.0", "head"):
            assert word in str(raised.value)
        assert lines(telemetry) == []

    def test_they_stand_in_the_order_given_and_may_overlap(self, tmp_path: Path) -> None:
        patterns = {"late": ["head", "backbone.4"], "backbone": "backbone", "biases": "*.bias"}
        assert groups_of(tmp_path / "t", Net(), groups=patterns) == ["late", "backbone", "biases"]

    def test_none_at_all(self, tmp_path: Path) -> None:
        assert groups_of(tmp_path / "t", Net(), groups={}) == []

    def test_names_in_any_script(self, tmp_path: Path) -> None:
        assert groups_of(tmp_path / "t", Net(), groups={"Kopf 頭": "head"}) == ["Kopf 頭"]


class TestTheUsualGroups:
    def test_where_the_model_has_both(self, tmp_path: Path) -> None:
        assert groups_of(tmp_path / "t", Net()) == ["backbone", "head"]

    def test_where_it_has_one(self, tmp_path: Path) -> None:
        assert groups_of(tmp_path / "t", nn.ModuleDict({"stem": nn.Linear(2, 2), "head": nn.Linear(2, 2)})) == ["head"]

    def test_where_it_has_neither(self, tmp_path: Path) -> None:
        """Names that only contain the words are not such modules."""
        model = nn.ModuleDict({"my_backbone": nn.Linear(2, 2), "headless": nn.Linear(2, 2), "heads": nn.Linear(2, 2)})
        assert groups_of(tmp_path / "t", model) == []

    def test_deep_inside(self, tmp_path: Path) -> None:
        inner = nn.ModuleDict({"backbone": nn.Linear(2, 2)})
        model = nn.ModuleDict({"net": nn.ModuleDict({"part": inner, "head": nn.Linear(2, 3)})})
        assert groups_of(tmp_path / "t", model) == ["backbone", "head"]

    def test_modules_that_appear_while_training(self, tmp_path: Path) -> None:
        model = nn.ModuleDict({"backbone": nn.Linear(2, 2)})
        with telemetry_in(tmp_path / "t") as telemetry:
            telemetry.on_batch_end(model, None, 1, 0)
            model["head"] = nn.Linear(2, 2)
            pretend_gradients(model)
            telemetry.on_batch_end(model, None, 2, 0)
        first, second = (line["gradient_norm"] for line in lines(telemetry))
        assert list(first) == ["overall", "backbone"]
        assert list(second) == ["overall", "backbone", "head"]
        assert second["head"] > 0


# Plain words: none is a wrapper's name, which is left out of a path, nor an adapter's.
part = st.sampled_from(["net", "enc", "encoder", "head", "a", "b", "0", "1", "12", "weight", "bias"])
paths = st.lists(part, min_size=1, max_size=5).map(".".join)


class TestPatterns:
    @given(st.lists(paths, max_size=8), st.lists(part, min_size=1, max_size=3))
    @example(["a.b.weight", "ab.weight", "a.b"], ["a", "b"])
    @settings(deadline=None)
    def test_a_path_matches_where_its_parts_stand_side_by_side(self, names: list[str], wanted: list[str]) -> None:
        def inside(name: str) -> bool:
            parts = name.split(".")
            return any(parts[i : i + len(wanted)] == wanted for i in range(len(parts)))

        assert match_parameters(names, ".".join(wanted)) == [i for i, name in enumerate(names) if inside(name)]

    @given(st.lists(paths, max_size=8), st.lists(st.sampled_from(["*", "?", "a", "b", ".", "0", "head", "[ab]"])))
    @settings(deadline=None)
    def test_a_glob_is_compared_with_the_whole_path(self, names: list[str], pieces: list[str]) -> None:
        pattern = "".join(["*", *pieces])
        expected = [i for i, name in enumerate(names) if re.match(translate(pattern), name)]
        assert match_parameters(names, pattern) == expected

    @given(st.lists(paths, max_size=8), st.lists(paths, max_size=3))
    @settings(deadline=None)
    def test_several_patterns_match_what_any_of_them_does(self, names: list[str], patterns: list[str]) -> None:
        each = [set(match_parameters(names, pattern)) for pattern in patterns]
        assert match_parameters(names, patterns) == sorted(set().union(*each))

    @given(paths, paths)
    @settings(deadline=None)
    def test_wrappers_change_nothing(self, name: str, pattern: str) -> None:
        for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
            assert match_parameters([prefix + name], pattern) == match_parameters([name], pattern)
