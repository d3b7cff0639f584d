"""`learnscope audit`'s advice on bits: flags, what is refused at once, and what is said."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.cli import main
from learnscope.findings import find
from learnscope.findings.bits.frontier import described
from learnscope.model.bits.sensitivities import load
from learnscope.posttrain import ModelAnalyzer
from learnscope.posttrain.command import AuditOptions, run_audit
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.planning.sampling import NARROW, enough_examples
from learnscope.posttrain.session import AuditSession
from learnscope.reading.audit import Frontier, read_audit
from learnscope.report.audit.verdict import verdict
from learnscope.report.bits.configurations import bits_axis
from learnscope.report.page.audit import _sensitivities as sensitivities_of
from posttrain.trained import trained_gpt2, trained_llama
from report.audit.audit_runs import AuditRun

SHORT = ("--data_split", "validation", "--examples", "24", "--length", "16", "--parts", "bit_widths", "--threads", "1")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of an audit of a Llama with all flags of the bit widths, and what it printed."""
    folder = tmp_path_factory.mktemp("audited")
    flags = [
        *("--bits", "8", "4", "3"), "--no-embeddings", "--asymmetric", "--granularity", "group", "--group_size", "16",
        *("--activation_bits", "8", "--method", "rtn", "--max_increase", "0.02"),
    ]  # fmt: skip
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("builtins.print", lambda *said, **_: lines.append(" ".join(map(str, said))))
        command = ["audit", "--model_path", str(trained_llama()), "--output_dir", str(folder), *SHORT, *flags]
        assert main(command) == 0
    return folder, "\n".join(lines)


def frontier(folder: Path) -> Frontier:
    part = read_audit(ls.open_run(folder).reader).optimum
    assert isinstance(part, Frontier)
    return part


def test_every_flag_reaches_the_search_and_is_said(audited: tuple[Path, str]) -> None:
    folder, _ = audited
    part = frontier(folder)
    options = ls.open_run(folder).manifest["probes"]["BitFrontier"]
    assert {name: options[name] for name in ("bits", "embeddings", "symmetric", "granularity", "group_size")} == {
        "bits": [8, 4, 3], "embeddings": False, "symmetric": False, "granularity": "group", "group_size": 16,
    }  # fmt: skip
    assert (options["activation_bits"], options["max_increase"], options["method"]) == (8, 0.02, "rtn")
    for name, bits in part.notes["bits"].items():
        assert set(bits.values()) <= {3, 4, 8, 16}, name
        assert not any("embed" in unit or "lm_head" in unit for unit in bits)
    for name, way in part.notes["schemes"].items():
        if name not in ("float16", "bfloat16"):
            assert (way["granularity"], way["group_size"], way["symmetric"], way["activation_bits"]) == (
                "group", 16, False, 8,
            )  # fmt: skip
    text = (folder / "summary_report.md").read_text()
    assert "embeddings and head as stored" in text
    assert "activations in 8 bits" in text
    assert "num labels" not in text, "a Llama that writes text has none"
    assert "vocab size" in text


def test_the_examples_that_were_asked_for_are_used_and_both_halves_are_said(
    audited: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = audited
    part = frontier(folder)
    assert part.notes["search_examples"] + part.notes["held_out_examples"] == 24
    said = f"searched on {part.notes['search_examples']} and judged on {part.notes['held_out_examples']} other examples"
    assert said in dict(verdict(ls.open_run(folder).reader))["how"]
    assert said in (folder / "summary_report.md").read_text()
    analyzer = ModelAnalyzer(trained_gpt2(), progress=False)
    data = analyzer.data(None, split="validation", examples=48, length=8)
    passed_on = analyzer.planner.fixed(analyzer.data(data))
    assert analyzer.planner.depth(passed_on).bits.examples == 48, "more than the usual 32"
    usual = analyzer.data(None, split="validation", length=8)
    fixed = analyzer.planner.fixed(usual)
    task = analyzer.session.task_of(fixed)
    few, more = (enough_examples(analyzer.model, task, fixed, most, 0.0) for most in (32, 64))
    assert few is not None
    assert more is not None
    assert few.half is not None
    assert more.half is not None
    assert more.half < few.half
    # what is wanted lies between the two: how narrow either is depends on the weights that were trained here
    monkeypatch.setitem(NARROW, "default", (few.half + more.half) / 2)
    analyzer = ModelAnalyzer(trained_gpt2(), progress=False)
    assert analyzer.planner.depth(fixed).bits.examples == 64


def test_the_verdict_comes_first_in_about_ten_lines(audited: tuple[Path, str]) -> None:
    folder, _ = audited
    lines = verdict(ls.open_run(folder).reader)
    assert len(lines) <= 12
    labels = [label for label, _ in lines]
    assert {"smallest as good", "recommended", "how"} <= set(labels)
    assert "n = " in dict(lines)["smallest as good"]
    assert "95 % interval" in dict(lines)["smallest as good"]
    text = (folder / "summary_report.md").read_text()
    assert text.index("## Verdict") < text.index("## Model configuration")
    body = json.loads((folder / "analysis_results.json").read_text())
    assert body["bit_widths"]["optimum"]["notes"]["choices"]["indistinguishable"]["n"] > 0


def test_bits_of_blocks_are_drawn_where_those_of_the_model_hide_them(audited: tuple[Path, str]) -> None:
    """With embeddings in float32, the whole model has about as many bits at 3 as at 8."""
    items = frontier(audited[0]).items
    spread = [item["model_bits"].value or 0 for item in items if item.name != "original"]
    assert max(spread) < 1.5 * min(spread)
    assert bits_axis(items) == ("block_bits", "bits a weight, in blocks")
    run = AuditRun(2)
    run.widths()
    part = read_audit(run.reader).configurations
    assert part is not None
    assert bits_axis(part.items)[0] == "model_bits"


def test_what_cannot_be_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr(AuditSession, "measure", work)
    monkeypatch.setattr("learnscope.posttrain.planning.planner.Planner.estimates", work)
    command = ["audit", "--model_path", str(trained_llama()), "--output_dir", str(tmp_path / "out"), *SHORT[:2]]
    closed = tmp_path / "file"
    closed.write_text("")
    for flags, words in [
        (["--max_mb", "0.01"], "--max_mb 0.01 cannot be kept: the smallest that these bits allow takes"),
        (["--max_mb", "0.1", "--no-embeddings"], "cannot be kept"),
        (["--export", str(closed / "m.safetensors")], "is a file, so nothing can be written below it"),
        (["--bits", "9"], "2 to 8 and 16 are possible"),
        (["--method", "magic"], "--method 'magic': 'rtn', 'mse', 'gptq', 'awq', 'autoround' are possible"),
        (["--granularity", "tensor", "--group_size", "32"], "--group_size 32 is for --granularity 'group'"),
        (["--activation_bits", "1"], "2 to 8"),
        (["--bits", "4", "--parts", "performance"], "add bit_widths"),
    ]:
        assert main([*command, *flags]) == 2, flags
        assert words in capsys.readouterr().err, flags
    assert not (tmp_path / "out").exists()
    if os.geteuid():  # root may write everywhere
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        with pytest.raises(PosttrainError, match="cannot be written"):
            run_audit(AuditOptions(models={"a": trained_llama()}, export=locked / "m.safetensors"))


def test_the_reason_of_a_wrong_configuration_is_kept(tmp_path: Path) -> None:
    """transformers names the field in the first line of its message, and what is wrong with it in the second."""
    source = trained_llama()
    fields = json.loads((source / "config.json").read_text()) | {"hidden_size": "sixty-four"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(PosttrainError, match=r"hidden_size.*(expected int|got str|sixty-four)"):
        ModelAnalyzer(source / "model.safetensors", tmp_path / "config.json")


def test_a_mix_that_is_a_uniform_width_is_not_called_no_better_than_it() -> None:
    def said(**bits: dict[str, int]) -> set[str]:
        run = AuditRun(2)
        write = run.once
        run.once = lambda *given, **notes: write(*given, **notes, bits=bits)  # type: ignore[method-assign]
        run.optimum(wins=False, kl=0.064)
        return {finding.kind for finding in find(run.reader)}

    four = dict.fromkeys(AuditRun(2).units, 4)
    assert "audit_uniform_as_good" in said(optimal={**four, "h.0.attn": 8}, uniform_4=four)
    assert "audit_uniform_as_good" not in said(optimal=four, uniform_4=four)


def test_zero_points_at_few_bits_are_said(audited: tuple[Path, str]) -> None:
    """By default ranges are around 0 from 4 bits on, and below have a zero point: the words say which have one."""
    part = frontier(audited[0])
    default = {"granularity": "channel", "group_size": 64, "symmetric": None}

    def said(*widths: int, **way: Any) -> str:
        bits = dict(zip("abc", widths, strict=False))
        notes = {**part.notes, "bits": {"x": bits}, "schemes": {"x": {**default, **way}}, "embeddings": True}
        return described(replace(part, notes=notes), "x")

    assert said(4, 3, 2).endswith("; a scale for each output channel, asymmetric at 3 bits and fewer")
    assert said(3, 2, 2).endswith(", asymmetric")
    assert said(8, 4).endswith(", symmetric")
    assert said(4, 2, symmetric=True).endswith(", symmetric")
    assert said(8, 4, symmetric=False).endswith(", asymmetric")
    assert "asymmetric" in dict(verdict(ls.open_run(audited[0]).reader))["recommended"], "which was asked for"


class Regression(nn.Module):
    """Two numbers from eight, in blocks of no kind that is known."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


def test_classifiers_are_judged_by_their_answers_and_regressions_by_their_loss() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    run = ls.audit(model, (inputs, model(inputs).argmax(1)), probes=[ls.BitFrontier(examples=64)], progress=False)
    [record] = run.records()
    assert not record.error, record.error
    choice = record.notes["choices"]["indistinguishable"]
    assert (choice["measure"], choice["n"]) == ("accuracy", 32)
    assert choice["change"] <= 0.01
    assert choice["low"] <= 0 < choice["high"], "an interval of 32 answers, not one changed"
    regression = Regression()
    targets = regression(inputs).detach() + torch.randn(64, 2)
    run = ls.audit(regression, (inputs, targets), probes=[ls.BitFrontier(examples=64)], progress=False)
    [record] = run.records()
    assert not record.error, record.error
    assert record.notes["choices"]["indistinguishable"]["measure"] == "loss"
    assert record.notes["judged_by"] == "mse"


def test_all_widths_are_known_to_another_budget_and_to_the_page(tmp_path: Path) -> None:
    """Single units are measured at four widths; the others are read off between them, and called so."""
    analyzer = ModelAnalyzer(trained_gpt2(), progress=False)
    found = analyzer.analyze_bit_widths(analyzer.data(None, split="validation", examples=8, length=8))
    known = load(analyzer.bit_width_analyzer.save_sensitivity(tmp_path / "s.json"))
    sizes = {name: item["packed_bytes"] for name, item in found["configurations"].items()}
    for damage in known.damage.values():
        assert set(damage) == {16, 8, 7, 6, 5, 4, 3, 2}
        assert damage[4] > damage[5] > damage[6] > damage[7] > damage[8] > damage[16]
    for width in (5, 6):
        assert known.bytes_of(dict.fromkeys(known.damage, width)) == sizes[f"uniform_{width}"]
    between = (sizes["uniform_5"] + sizes["uniform_6"]) // 2
    mix = known.solve(max_bytes=between)
    assert known.bytes_of(mix.choice) <= between
    assert set(mix.choice.values()) & {5, 6, 7}, "no longer 8, 4, 3 and 2 alone"
    units = sensitivities_of(read_audit(analyzer.run.reader))["units"]
    for unit in units:
        assert [option["bits"] for option in unit["options"]] == [2, 3, 4, 5, 6, 7, 8, 16]
        told = {option["bits"]: (option["damage"], option["bytes"]) for option in unit["options"]}
        assert told == {bits: (known.damage[unit["name"]][bits], known.size[unit["name"]][bits]) for bits in told}
        assert [option["bits"] for option in unit["options"] if option.get("read_off")] == [5, 6, 7, 16]
