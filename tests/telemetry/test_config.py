"""The options: their documented defaults, what is refused and in which words, and that they are copied."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from telemetry.loops import Net, lines, telemetry_in

DOCUMENTED = {
    "enabled": True,
    "collect_every_n": 200,
    "output_dir": None,
    "track_gradients": True,
    "track_weight_delta": True,
    "track_learning_rates": True,
    "track_holdout_logits": True,
    "track_batch_stats": True,
    "holdout_size": 50,
}
OWN = {"groups": None, "tensorboard": False}
DOCUMENT = """
telemetry:
  enabled: true
  collect_every_n: 200
  output_dir: null  # Will be set programmatically

  # Enable/disable individual metrics
  track_gradients: true
  track_weight_delta: true
  track_learning_rates: true
  track_holdout_logits: true
  track_batch_stats: true

  # Holdout settings
  holdout_size: 50
"""


def yaml_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_documented_option_has_its_documented_default() -> None:
    options = dataclasses.asdict(TelemetryConfig())
    assert options == DOCUMENTED | OWN
    assert list(options)[: len(DOCUMENTED)] == list(DOCUMENTED), "positions are part of the interface"


def test_options_survive_a_dictionary() -> None:
    given = TelemetryConfig(
        collect_every_n=3, output_dir=Path("x"), track_batch_stats=False, groups={"a": ["b", "c*"]}, holdout_size=7
    )
    assert TelemetryConfig.from_dict(dataclasses.asdict(given)) == given
    assert TelemetryConfig.from_dict({}) == TelemetryConfig()


@pytest.mark.parametrize(
    ("key", "meant"),
    [("collect_every", "collect_every_n"), ("trackgradients", "track_gradients"), ("holdout", "holdout_size")],
)
def test_a_key_that_is_no_option_is_refused_by_name(key: str, meant: str) -> None:
    options: dict[str, Any] = {key: 5}
    with pytest.raises(TypeError, match=rf"has no option '{key}'\. Did you mean '{meant}'\?"):
        TelemetryConfig.from_dict(options)
    with pytest.raises(TypeError, match=rf"has no option '{key}'\. Did you mean '{meant}'\?"):
        TelemetryConfig(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"collect_every_n": 0}, "collect_every_n=0: a whole number from 1"),
        ({"collect_every_n": -5}, "collect_every_n=-5"),
        ({"collect_every_n": 2.5}, r"collect_every_n=2\.5"),
        ({"collect_every_n": "200"}, "collect_every_n='200'"),
        ({"collect_every_n": True}, "collect_every_n=True"),
        ({"collect_every_n": None}, "collect_every_n=None"),
        ({"holdout_size": 0}, "holdout_size=0"),
        ({"holdout_size": 1e2}, r"holdout_size=100\.0"),
        ({"enabled": "false"}, "enabled='false': True or False"),
        ({"track_gradients": 1}, "track_gradients=1"),
        ({"track_batch_stats": None}, "track_batch_stats=None"),
        ({"tensorboard": "yes"}, "tensorboard='yes'"),
        ({"output_dir": 7}, "output_dir=7: a path"),
        ({"groups": ["backbone"]}, r"groups=\['backbone'\]: a mapping"),
        ({"groups": "backbone"}, "groups='backbone': a mapping"),
        ({"groups": {1: "x"}}, "groups: 1"),
        ({"groups": {"": "x"}}, "groups: ''"),
        ({"groups": {"a": 5}}, r"groups\['a'\]=5"),
        ({"groups": {"a": []}}, r"groups\['a'\]=\[\]"),
        ({"groups": {"a": ["b", ""]}}, r"groups\['a'\]"),
        ({"groups": {"a": None}}, r"groups\['a'\]=None"),
        ({"groups": {"overall": "x"}}, "groups: 'overall' is what telemetry calls"),
        ({"groups": {"group_12": "x"}}, "groups: 'group_12' is what telemetry calls"),
    ],
)
def test_values_are_refused_with_the_name_of_the_option(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        TelemetryConfig.from_dict(options)


def test_a_path_may_be_text() -> None:
    assert TelemetryConfig(output_dir="a/b").output_dir == Path("a/b")  # type: ignore[arg-type]


class TestYaml:
    def test_the_documents_section(self, tmp_path: Path) -> None:
        assert TelemetryConfig.from_yaml(yaml_file(tmp_path, DOCUMENT)) == TelemetryConfig()

    def test_a_section_beside_others(self, tmp_path: Path) -> None:
        text = "model: {depth: 3}\ntelemetry: {collect_every_n: 7, groups: {tail: [head, '*.bias']}}\n"
        config = TelemetryConfig.from_yaml(str(yaml_file(tmp_path, text)))
        assert config == TelemetryConfig(collect_every_n=7, groups={"tail": ["head", "*.bias"]})

    def test_a_whole_file(self, tmp_path: Path) -> None:
        assert TelemetryConfig.from_yaml(yaml_file(tmp_path, "holdout_size: 9\n")) == TelemetryConfig(holdout_size=9)

    @pytest.mark.parametrize("text", ["", "# nothing\n", "telemetry:\n", "telemetry: {}\n"])
    def test_empty_is_all_defaults(self, tmp_path: Path, text: str) -> None:
        assert TelemetryConfig.from_yaml(yaml_file(tmp_path, text)) == TelemetryConfig()

    @pytest.mark.parametrize("text", ["a: [1, 2", "\ta: 1", b"\xff\xfe\x00\x80", "a: b: c"])
    def test_what_is_not_yaml_is_refused_with_the_path(self, tmp_path: Path, text: str | bytes) -> None:
        path = yaml_file(tmp_path, text)
        with pytest.raises(ValueError, match=r"config\.yaml is not readable YAML"):
            TelemetryConfig.from_yaml(path)

    @pytest.mark.parametrize("text", ["- enabled\n", "telemetry: [1]\n", "telemetry: true\n", "just words\n"])
    def test_what_is_no_mapping_is_refused_with_the_path(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(TypeError, match=r"config\.yaml: the telemetry section is a mapping"):
            TelemetryConfig.from_yaml(yaml_file(tmp_path, text))

    def test_a_key_that_is_no_option_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match="Did you mean 'track_gradients'"):
            TelemetryConfig.from_yaml(yaml_file(tmp_path, "telemetry: {track_gradient: true}\n"))

    def test_no_code_of_a_file_runs(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="not readable YAML"):
            TelemetryConfig.from_yaml(yaml_file(tmp_path, "telemetry: !!python/object/apply:os.getpid []\n"))


def test_changing_the_options_later_has_no_effect(tmp_path: Path) -> None:
    groups = {"mine": ["head"]}
    config = TelemetryConfig(collect_every_n=2, output_dir=tmp_path / "t", groups=groups)
    with TrainingTelemetry(config, strict=True) as telemetry:
        config.collect_every_n, config.track_gradients, config.groups = 1, False, None
        groups["mine"].append("backbone")
        groups["other"] = ["backbone"]
        for number in range(1, 5):
            telemetry.on_batch_end(Net(), None, number, 0)
    found = lines(telemetry)
    assert [line["batch_idx"] for line in found] == [2, 4]
    assert list(found[0]["gradient_norm"]) == ["overall", "mine"]
    assert telemetry.config.groups == {"mine": ["head"]}


def test_options_are_checked_again_when_telemetry_is_made(tmp_path: Path) -> None:
    config = TelemetryConfig(output_dir=tmp_path / "t")
    config.collect_every_n = 0
    with pytest.raises(ValueError, match="collect_every_n=0"):
        TrainingTelemetry(config)
    assert not (tmp_path / "t").exists()


def test_telemetry_itself_refuses_by_name() -> None:
    with pytest.raises(TypeError, match=r"TrainingTelemetry has no option 'resum'\. Did you mean 'resume'\?"):
        TrainingTelemetry(TelemetryConfig(enabled=False), resum=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"config is a dict: .*from_dict"):
        TrainingTelemetry({"enabled": False})  # type: ignore[arg-type]


def test_options_are_in_the_manifest(tmp_path: Path) -> None:
    with telemetry_in(tmp_path / "t", every=3, groups={"tail": "head"}) as telemetry:
        telemetry.on_batch_end(Net(), None, 3, 0)
    kept = telemetry.run.manifest["config"]
    assert kept == dataclasses.asdict(telemetry.config) | {"output_dir": str(tmp_path / "t")}
