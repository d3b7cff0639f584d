"""What is said of adapters: ranks too large, ranks used up, modules that learn nothing, layers that do the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

import learnscope as ls
from findings.made_run import MadeRun, Number
from learnscope.findings import Cuts
from learnscope.findings.adapters.adapters import adapters
from learnscope.record import Column, Finding, Table

MODULES = [f"model.layers.{layer}.self_attn.{kind}" for layer in range(6) for kind in ("q_proj", "v_proj")]
LABELS = {"adapter": "default", "family": "lora"}


def spectrum(
    run: MadeRun, step: int, norms: Mapping[str, Number], use: Mapping[str, Number] | float = 0.6, rank: int = 8,
    adapter: str = "default",
) -> None:  # fmt: skip
    scopes, labels = list(norms), {**LABELS, "adapter": adapter}
    shares = [use if isinstance(use, float) else use[scope] for scope in scopes]
    run.write("AdapterSpectrum", step, [Table("module", scopes, [
        Column("frobenius_norm", list(norms.values()), labels), Column("rank_utilisation", shares, labels),
        Column("rank", [rank] * len(scopes), labels),
    ])])  # fmt: skip


def truncation(
    run: MadeRun, step: int, best: Mapping[str, Number], rank: int = 8, kept: float = 0.2, kl: float = 0.002,
    scale: float = 0.4, judged_by: str = "kl",
) -> None:  # fmt: skip
    at = {"cut": "each", "energy": 0.9}
    model = [
        Column(judged_by, [scale], {"cut": "each", "energy": 0.0}), Column(judged_by, [kl], at),
        Column(judged_by, [0.3], {"cut": "all", "energy": 0.9}), Column("recommended_energy", [0.9], {"cut": "each"}),
        Column("recommended_parameters", [kept], {"cut": "each"}),
    ]  # fmt: skip
    rows = [Column("recommended_rank", list(best.values()), LABELS), Column("rank", [rank] * len(best), LABELS)]
    run.write(
        "AdapterTruncation", step, [Table("model", ["model"], model), Table("module", list(best), rows)], phase="end",
        notes={"examples": 16, "judged_by": judged_by},
    )  # fmt: skip


def even(value: float = 1.0) -> dict[str, Number]:
    return dict.fromkeys(MODULES, value)


def kinds(found: Sequence[Finding]) -> list[str]:
    return [finding.kind for finding in found]


def judged(run: MadeRun, **cuts: float) -> list[Finding]:
    run.manifest["model"]["layers"] = [f"model.layers.{i}" for i in range(6)]
    return adapters(run.reader, Cuts(**cuts))


def test_adapters_that_do_well_are_not_spoken_of() -> None:
    run = MadeRun()
    for step in (10, 20, 30, 40):
        spectrum(run, step, even())
    truncation(run, 40, dict.fromkeys(MODULES, 7), kept=0.9)
    assert judged(run) == []


def test_ranks_that_were_tried_and_would_do() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, even())
    truncation(run, 30, {**dict.fromkeys(MODULES, 1), MODULES[3]: 2, MODULES[4]: 8})
    [finding] = judged(run)
    assert finding.kind == "adapter_rank_large"
    assert finding.title == "20 % of the adapters' parameters would suffice"
    assert "r = 1 for 10 modules, r = 2 for 1 module in place of r = 8" in finding.detail
    assert "16 held-out examples lose 0.5 % of what the adapters do" in finding.detail
    assert "mean KL" in finding.detail
    assert MODULES[4] not in finding.scopes
    evidence = finding.evidence
    assert (evidence.probe, evidence.name, evidence.n, evidence.value) == (
        "AdapterTruncation", "recommended_parameters", 16, 0.2,
    )  # fmt: skip


def test_outputs_that_are_numbers_are_judged_by_their_squared_error() -> None:
    run = MadeRun()
    truncation(run, 30, dict.fromkeys(MODULES, 1), judged_by="mse")
    [finding] = judged(run)
    assert "mean squared error" in finding.detail


def test_no_rank_that_was_tried_is_not_a_rank_that_would_do() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, even())
    columns = [Column("recommended_energy", [None]), Column("recommended_parameters", [None])]
    modules = [Column("recommended_rank", [None] * 12, LABELS, dict.fromkeys(range(12), "nothing was good enough"))]
    run.write("AdapterTruncation", 30, [Table("model", ["model"], columns), Table("module", MODULES, modules)])
    assert judged(run) == []


def test_few_directions_without_ranks_that_were_tried() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, even(), use={**dict.fromkeys(MODULES, 0.2), MODULES[0]: 0.9})
    [finding] = judged(run)
    assert finding.kind == "adapter_rank_large"
    assert "A lower rank has not been tried" in finding.detail
    assert MODULES[0] not in finding.scopes
    assert len(finding.scopes) == 11
    assert (finding.evidence.first_step, finding.evidence.last_step) == (10, 30)


def test_two_measurements_are_not_enough() -> None:
    run = MadeRun()
    for step in (10, 20):
        spectrum(run, step, even(), use=0.2)
    assert judged(run) == []


def test_an_exhausted_rank() -> None:
    run = MadeRun()
    for step in (10, 20, 30, 40):
        spectrum(run, step, even(), use=0.5 if step == 10 else 0.97)
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == ("adapter_rank_exhausted", "info")
    assert finding.title == "12 adapted modules of 12 use all their directions"
    assert "97 % or more" in finding.detail
    assert "now 8" in finding.advice
    assert (finding.evidence.first_step, finding.evidence.last_step) == (20, 40)


def test_a_flat_spectrum_that_can_be_cut_is_not_exhausted() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, even(), use=0.97)
    truncation(run, 30, dict.fromkeys(MODULES, 6), kept=0.75)
    assert judged(run) == []
    again = MadeRun()
    for step in (10, 20, 30):
        spectrum(again, step, even(), use=0.97)
    truncation(again, 30, dict.fromkeys(MODULES, 8), kept=1.0)
    [finding] = judged(again)
    assert finding.kind == "adapter_rank_exhausted"
    assert "Every lower rank that was tried loses more" in finding.detail


def test_a_rank_of_one_is_never_called_exhausted() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, even(), use=1.0, rank=1)
    assert judged(run) == []


def test_modules_that_learn_nothing() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, {**even(), MODULES[1]: 0.0, MODULES[2]: 0.0})
        labels = {**LABELS, "stage": "stepped", "component": "lora_B"}
        norms = [0.0 if module == MODULES[1] else 0.3 for module in MODULES]
        run.write("AdapterGradients", step, [Table("module", MODULES, [Column("norm", norms, labels)])])
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == ("dead_adapters", "warning")
    assert list(finding.scopes) == MODULES[1:3]
    assert finding.title == "2 adapted modules of 12 learned nothing"
    assert "No gradient other than 0 reached 1 of them." in finding.detail


def test_adapters_that_have_not_begun_are_not_dead() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, even(0.0))
    assert judged(run) == []
    spectrum(run, 40, {**even(), MODULES[0]: 0.0})
    assert kinds(judged(run)) == ["dead_adapters"]
    unmeasured = MadeRun()
    for step in (10, 20, 30):
        spectrum(unmeasured, step, {**even(), MODULES[0]: None})
    assert judged(unmeasured) == []


def test_layers_that_do_the_work() -> None:
    run = MadeRun()
    spectrum(run, 10, {**even(), MODULES[4]: 6.0, MODULES[5]: 7.0})
    [finding] = judged(run)
    total = 36 + 49 + 10
    assert finding.kind == "layers_that_do_the_work"
    assert list(finding.scopes) == ["model.layers.2"]
    assert finding.evidence.value == pytest.approx(85 / total)
    assert finding.title == "1 layer of 6 does 89.5 % of the work"
    even_run = MadeRun()
    spectrum(even_run, 10, even())
    assert judged(even_run) == []


def test_intruders() -> None:
    run = MadeRun()
    labels = {**LABELS, "k": 10, "epsilon": 0.5}
    run.write(
        "AdapterSpectrum", 50, [Table("module", MODULES[:3], [Column("intruder_dimensions", [0, 2, None], labels)])]
    )
    [finding] = judged(run)
    assert finding.kind == "intruder_dimensions"
    assert list(finding.scopes) == [MODULES[1]]
    assert "2 leading singular vectors" in finding.detail
    assert finding.evidence.n == 2


def test_several_adapters_are_told_apart() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, even(), use=0.97)
        spectrum(run, step, even(), use=0.6, adapter="other")
    [finding] = judged(run)
    assert finding.title.endswith("in adapter default")


def test_a_run_says_them() -> None:
    from model.adapters.adapted import adapted, token_batches

    one = adapted("lora", r=8)
    for name, p in one.model.named_parameters():
        if "layers.1.self_attn.q_proj" in name:
            p.requires_grad_(False)
    probes = [ls.AdapterSpectrum(every=2), ls.AdapterTruncation(share=0.2)]
    with ls.watch(one.model, one.optimizer, probes=probes, holdout=token_batches(4), strict=True) as w:
        one.train(8)
    found = {finding.kind: finding for finding in w.run.findings()}
    assert list(found["dead_adapters"].scopes) == ["model.layers.1.self_attn.q_proj"]
    assert found["adapter_rank_large"].evidence.probe == "AdapterTruncation"
