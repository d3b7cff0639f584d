"""What is said of audits: each sentence with its numbers, and nothing said of what was not measured."""

from __future__ import annotations

import math
from typing import Any

import pytest

import learnscope as ls
from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.reading.audit import PROBES, read_audit
from learnscope.record import Column, Finding, Table
from learnscope.report.audit.summary import summary_text
from report.audit.audit_runs import AuditRun, columns, made


@pytest.fixture(scope="module")
def whole() -> AuditRun:
    return made()


def of(run: MadeRun, kind: str, **cuts: Any) -> Finding:
    [finding] = [one for one in find(run.reader, Cuts(**cuts)) if one.kind == kind]
    return finding


def kinds(run: MadeRun, **cuts: Any) -> set[str]:
    return {finding.kind for finding in find(run.reader, Cuts(**cuts))}


def test_a_training_is_not_taken_for_an_audit() -> None:
    run = MadeRun()
    for step in range(1, 6):
        run.loss(step, 1.0 / step)
    audit = read_audit(run.reader)
    assert not audit
    assert audit.missing["speed"] == "InferenceSpeed was not run"
    assert not any(kind.startswith("audit_") for kind in kinds(run))


def test_every_part_is_read(whole: AuditRun) -> None:
    audit = read_audit(whole.reader)
    assert audit.missing == {}
    assert all(getattr(audit, part) is not None for part in PROBES)
    assert audit.quality is not None
    assert (audit.quality.loss.value, audit.quality.n_examples, list(audit.quality.top_k)) == (3.2, 256, [5, 10])
    assert audit.speed is not None
    assert (audit.speed.main.batch, len(audit.speed.settings)) == (4, 11)
    assert audit.speed.main.p99.value is None
    assert audit.speed.main.p99.reason == "n = 100: too few for this percentile"
    assert audit.transfer is not None
    assert audit.transfer.accuracy[4, 0].value == pytest.approx(0.23)
    assert audit.sensitivity is not None
    assert (len(audit.sensitivity.units), audit.sensitivity.bits) == (24, [16, 8, 4, 2])


def test_later_configurations_of_the_same_data_join_the_earlier_ones() -> None:
    run = AuditRun(2)
    run.widths(only=("original", "uniform_8", "uniform_4"))
    run.widths({"mine": (4.0, 0.01)}, only=("mine",))
    run.once("BitWidths", [Table("configuration", ["elsewhere"], [Column("kl", [1.0])])], examples=7)
    run.widths({"mine": (4.0, 0.01)}, only=("mine",))
    part = read_audit(run.reader).configurations
    assert part is not None
    # the run on other data is left out; uniform_4 is larger and worse than the one of the later record
    assert {one.name: one["on_frontier"].value for one in part.items} == {
        "original": 1, "uniform_8": 1, "uniform_4": 0, "mine": 1
    }  # fmt: skip


def test_a_part_that_failed_has_its_message() -> None:
    run = AuditRun(2)
    run.performance()
    run.write("Attacks", 0, error="NotAvailable: no embeddings\nTraceback")
    assert read_audit(run.reader).missing["attacks"] == "Attacks failed: NotAvailable: no embeddings"
    assert of(run, "audit_suits_server").title == (
        "Not judged for servers open to strangers: speed was not measured (InferenceSpeed was not run)"
    )


def test_recommended_widths_and_what_they_cost(whole: AuditRun) -> None:
    found = of(whole, "audit_recommended_bits")
    assert found.title.startswith("Recommended widths: 8 bits for 6 units, 4 bits for 18 units, 204 MB of 497 MB")
    assert "is 0.011 (95 % interval 0.0099 to 0.0121) on 48 examples that the choice did not see" in found.detail
    assert "The loss rises, +0.0121 (95 % interval +0.0109 to +0.0133): more than chance." in found.detail
    assert (found.evidence.probe, found.evidence.n) == ("BitOptimum", 48)
    assert found.evidence.interval == pytest.approx((0.0099, 0.0121))
    assert of(whole, "audit_mixed_wins").title == "Mixed widths are better than uniform_4"
    run = AuditRun(4)
    run.optimum(wins=False, kl=0.063)
    same = of(run, "audit_uniform_as_good")
    assert same.title == "Mixed widths are no better than uniform_4"
    assert "mean KL of 0.063" in same.detail
    assert "8 units" in of(run, "audit_recommended_bits").title


def test_a_change_of_the_loss_within_chance_is_not_called_damage() -> None:
    run = AuditRun(2)
    run.widths(only=("original", "uniform_16", "uniform_4"))
    assert "which cannot be told from none" in of(run, "audit_smallest_near").detail
    assert of(run, "audit_smallest_near").scopes == ["uniform_16"]
    # the upper end of the interval decides: 0.06 + 10 %
    assert of(run, "audit_smallest_near", audit_kl=0.065).scopes == ["uniform_16"]
    assert of(run, "audit_smallest_near", audit_kl=0.0661).scopes == ["uniform_4"]
    none = of(run, "audit_no_width_near", audit_kl=1e-9)
    assert none.severity == "warning"
    assert "None of 2 configurations stays within a KL of 1.0e-09" in none.title


def test_sensitive_units_are_the_data_s(whole: AuditRun) -> None:
    order = sorted(range(24), key=lambda place: -whole.fragile[place])
    found = of(whole, "audit_sensitive_units")
    assert found.title == f"The most sensitive unit at 2 bits is {whole.units[order[0]]}"
    assert found.evidence.value == pytest.approx(whole.fragile[order[0]] * 2**-4 * 0.5)
    assert f"the least sensitive, {whole.units[order[-1]]}," in found.detail
    run = AuditRun(3)
    run.fragile[:] = [1, 2, 3, 4, 5, 9]
    run.sensitivity(broken="h.2.mlp")
    at = of(run, "audit_sensitive_units")
    # at 2 bits a unit is NaN: the next width at which all can be compared
    assert at.title == "The most sensitive unit at 4 bits is h.2.mlp"
    assert "2.57 times the median unit's" in at.detail
    # one is always the most sensitive: twice the median is news
    again = AuditRun(3)
    again.fragile[:] = [1, 2, 3, 4, 5, 6]
    again.sensitivity()
    assert "audit_sensitive_units" not in kinds(again)
    assert "attn 37.5 % and mlp 62.5 %" in at.detail


def test_damages_that_do_not_add_up_and_outputs_that_break() -> None:
    run = AuditRun(2)
    run.widths(additivity=0.25, broken=("uniform_2",))
    found = of(run, "audit_not_additive")
    assert "4 times more than the sum over its units alone (ratio 0.25)" in found.detail
    assert of(run, "audit_bits_not_finite").scopes == ["uniform_2"]
    assert "audit_not_additive" not in kinds(run, audit_additivity=5.0)


def test_time_and_size(whole: AuditRun) -> None:
    few = of(whole, "audit_percentiles_not_measured")
    assert few.title == "P99 of the latency cannot be told from 100 passes"
    assert few.advice == "Time at least 299 passes."
    assert few.evidence.value is None
    run = AuditRun(12)
    run.speed(300, warm=False)
    assert "audit_percentiles_not_measured" not in kinds(run)
    assert of(run, "audit_not_warm").severity == "warning"
    slow = of(whole, "audit_slowest_layer")
    assert slow.title == "The slowest layer, h.2, takes 6.94 % of a forward pass"
    assert slow.evidence.n == 20
    assert "audit_size_dominated" not in kinds(whole)
    assert of(whole, "audit_size_dominated", audit_part_share=0.4).title == "45.5 % of the model's bytes are MLPs"
    run.once("MemoryUse", [
        Table("model", ["model"], columns({"model_bytes": 4e6, "parameters": 10**6})),
        Table("part", ["embedding", "mlp"], [Column("bytes", [3e6, 1e6])]),
    ])  # fmt: skip
    large = of(run, "audit_size_dominated")
    assert large.title == "75 % of the model's bytes are embeddings"
    assert "cannot make this model smaller than 3 MB, 1.33 times smaller at best" in large.advice


@pytest.mark.parametrize(
    ("gap", "half", "verdict", "severity"),
    [(0.23, 0.04, "above 0.1: attacks take more", "warning"), (0.05, 0.02, "at most 0.1: the model withstands", "info"),
     (0.09, 0.03, "and whether that is at most 0.1 cannot be told", "info")],
)  # fmt: skip
def test_the_gap_is_judged_at_its_interval(gap: float, half: float, verdict: str, severity: str) -> None:
    run = AuditRun(2)
    run.attacks(gap, half)
    found = of(run, "audit_robustness_gap")
    assert verdict in found.title
    assert found.severity == severity
    assert found.evidence.interval == pytest.approx((gap - half, gap + half))
    assert "audit_gradient_masking" not in kinds(run)


def test_attacks_that_failed_are_no_robustness() -> None:
    run = AuditRun(2)
    run.speed(decode=False)
    run.attacks(0.02, 0.01, {"pgd_at_least_fgsm": 0, "random_below_attack": 0}, zeros=0.9)
    found = of(run, "audit_gradient_masking")
    assert found.severity == "warning"
    assert "up to 90 % of the gradients are exactly zero" in found.detail
    assert "PGD is weaker than FGSM" in found.detail
    assert "random noise of the same size does more damage" in found.detail
    assert "Not measured: monotone_in_steps (one number of steps was tried)" in found.detail
    assert "but gradient masking is suspected" in of(run, "audit_robustness_gap").title
    assert of(run, "audit_suits_server").title.startswith("Whether it suits servers open to strangers cannot be told")
    # robust as far as anyone can tell, if the attacks can be believed
    fine = AuditRun(2)
    fine.speed(decode=False)
    fine.attacks(0.02, 0.01)
    assert of(fine, "audit_suits_server").title.startswith("Suits servers")


def test_noise_is_stood_up_to_a_level(whole: AuditRun) -> None:
    found = of(whole, "audit_weight_noise")
    assert found.title == "The model stays within a KL of 0.01 under noise on the weights up to σ = 0.05"
    assert (found.evidence.n, found.evidence.value) == (5, pytest.approx(0.0075))
    assert found.advice == "The next level, σ = 0.1, is beyond."
    # fewer bits are more noise
    assert of(whole, "audit_quantisation_noise").title.endswith("rounding noise on the weights down to 6 bits")
    assert "does not stay within" in of(whole, "audit_weight_noise", audit_kl=1e-5).title
    assert "No breaking point in the tested range" in of(whole, "audit_weight_noise", audit_kl=5.0).advice


def test_damaged_inputs(whole: AuditRun) -> None:
    found = of(whole, "audit_token_substitution")
    assert found.title == "Replaced tokens of 40 % change the accuracy by 0.148"
    assert "from 5 % on" in found.advice
    run = AuditRun(2)
    same = {"accuracy_mean": 0.4, "accuracy_mean_low": 0.3, "accuracy_mean_high": 0.5, "seeds": 5}
    run.once("InputPerturbation", [
        Table("perturbation", ["clean"], columns({"accuracy_mean": 0.41}, level=0.0)),
        Table("perturbation", ["token_dropout"], columns(same, level=0.1)),
    ])  # fmt: skip
    assert of(run, "audit_token_dropout").title.endswith("which cannot be told from chance")


def test_whether_quantising_changes_robustness(whole: AuditRun) -> None:
    found = of(whole, "audit_quantised_robustness")
    assert found.title == "Quantising changes the accuracy under attack at 4 bits"
    assert "+0.18 (95 % interval +0.119 to +0.239) at 4 bits" in found.detail
    run = AuditRun(2)
    run.transfer(four=0.2)
    assert (
        of(run, "audit_quantised_robustness").title == "Quantising does not measurably change the accuracy under attack"
    )
    unknown = AuditRun(2)
    unknown.transfer(four=0.36, examples=None)
    found = of(unknown, "audit_quantised_robustness")
    assert found.evidence.interval is None
    assert found.title == "Whether quantising changes the accuracy under attack cannot be told"


def test_a_difference_of_shares_of_tokens_has_its_own_interval() -> None:
    """Eight texts of many tokens: of eight yes/no answers the interval would be −0.36 to +0.38."""
    run = AuditRun(2)
    run.transfer(four=0.2, examples=8, half=0.005)
    found = of(run, "audit_quantised_robustness")
    assert "+0.02 (95 % interval +0.015 to +0.025) at 4 bits" in found.detail
    assert found.title == "Quantising changes the accuracy under attack at 8 and 4 bits"


def test_what_has_no_interval_is_not_taken_for_sure() -> None:
    few = "3 examples are too few: an interval over examples needs 6, so give more"
    run = AuditRun(2)
    run.widths(no_interval=few)
    found = of(run, "audit_near_not_known")
    assert found.title == "Whether any configuration stays within a KL of 0.01 cannot be told"
    assert f"(no interval: {few})" in found.detail
    assert "whether that is more than chance cannot be told" in found.detail
    assert not {"audit_smallest_near", "audit_no_width_near"} & set(kinds(run))
    assert f"judged by their means alone, which chance may have ordered: {few}" in of(run, "audit_frontier").detail
    text = summary_text(read_audit(run.reader), run.manifest, name="model", about={}, drawn=[], absent={})
    assert f"no interval: {few}" in text
    attacked = AuditRun(2)
    attacked.attacks(0.02, few)
    gap = of(attacked, "audit_robustness_gap")
    assert "cannot be told" in gap.title
    assert "(no interval: 3 examples are too few" in gap.detail
    assert (gap.severity, gap.evidence.interval) == ("info", None)


def test_a_loss_that_is_not_a_number_is_a_warning() -> None:
    run = AuditRun(2)
    run.performance(math.nan)
    assert of(run, "audit_loss_unknown").severity == "warning"
    assert of(run, "audit_loss_unknown").evidence.value is None


def test_evidence_of_every_finding_is_finite_and_has_an_n(whole: AuditRun) -> None:
    for finding in find(whole.reader):
        assert finding.evidence.n >= 1, finding.kind
        assert finding.evidence.probe in PROBES.values()
        assert finding.evidence.value is None or math.isfinite(finding.evidence.value)
        assert all(part.endswith(".") for part in (finding.detail, finding.advice)), finding.kind


def test_thresholds_are_checked() -> None:
    with pytest.raises(ValueError, match=r"audit_robustness_gap=1\.5: a share below 1"):
        ls.Cuts(audit_robustness_gap=1.5)
    with pytest.raises(ValueError, match="audit_additivity=1: a factor above 1, such as 2"):
        ls.Cuts(audit_additivity=1.0)


def test_attacks_on_embeddings_are_no_verdict() -> None:
    """However much accuracy they take: nobody can send them."""
    run = AuditRun(2)
    run.attacks(0.4, flags={"pgd_at_least_fgsm": 0}, zeros=0.9, unit="token", target="embeddings")
    run.prompts()
    found = of(run, "audit_embedding_curvature")
    assert found.severity == "info"
    # from a loss of 3.2 by 4·0.4·√(1/30); random ones by a twentieth of that
    assert "raises the loss by 0.292" in found.title
    assert "20 times as much" in found.detail
    assert not {"audit_robustness_gap", "audit_gradient_masking"} & set(kinds(run))
    assert not [one for one in find(run.reader, Cuts()) if one.severity != "info"]
    text = summary_text(read_audit(run.reader), run.manifest, name="model", about={}, drawn=[], absent={})
    assert "Nobody who can only send text can do that" in text
    assert text.index("## Robustness summary") > text.index("## Optimal bit-width configuration")


def test_what_anybody_could_send_leads_and_warns_only_of_much() -> None:
    run = AuditRun(2)
    run.attacks(0.4, unit="token", target="embeddings")
    run.prompts(0.02, reason="no tokenizer is known, so there is no text to change: give one")
    found = of(run, "audit_prompts")
    assert found.severity == "info"
    assert found.title == "Of what anybody could send, typing errors in 2 % of the places cost the most accuracy: −0.02"
    assert "not measured: no tokenizer is known" in found.detail
    suits = [one for one in find(run.reader, Cuts()) if one.kind.startswith("audit_suits")]
    assert any("changed prompts (typos) cost 0.02 of accuracy ≤ 0.1" in one.title + one.detail for one in suits)
    hurt = AuditRun(2)
    hurt.prompts(0.2)
    assert of(hurt, "audit_prompts").severity == "warning"


def test_tasks_are_told_beside_guessing(whole: AuditRun) -> None:
    chosen, said = (one for one in find(whole.reader, Cuts()) if one.kind == "audit_task")
    assert (chosen.title, said.title) == ("arc: 60 % right", "sums: 30 % right")
    assert "Guessing gets 25 %" in chosen.detail
    assert chosen.evidence.n == 200
