"""What is said of speed, memory and devices: which setting a verdict rests on, and every part of a sum."""

from __future__ import annotations

from typing import Any

import pytest

from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.record import Finding, Table
from report.audit.audit_runs import AuditRun, columns, made


@pytest.fixture(scope="module")
def whole() -> AuditRun:
    return made()


def of(run: MadeRun, kind: str, **cuts: Any) -> Finding:
    [finding] = [one for one in find(run.reader, Cuts(**cuts)) if one.kind == kind]
    return finding


def test_real_time_rests_on_decoding_at_batch_1_and_never_on_reading(whole: AuditRun) -> None:
    """Reading makes 3,850 tokens a second here, and a pass over a batch 5,570; writing makes 66.7."""
    real = of(whole, "audit_suits_real_time")
    assert real.title == "Does not suit real-time use here: 66.7 tokens/s < 1,000 (decode, batch 1, length 128)"
    assert real.evidence.value == pytest.approx(1 / 0.015)
    assert "Reading text is another matter: 3,850 tokens/s (prefill, batch 4, length 128)." in real.detail
    suits = of(whole, "audit_suits_real_time", audit_tokens_per_second=50.0)
    assert suits.title == "Suits real-time use here: 66.7 tokens/s ≥ 50 (decode, batch 1, length 128)"
    assert "this machine" in suits.advice


def test_a_model_that_does_not_decode_is_judged_by_one_example() -> None:
    run = AuditRun(2)
    run.speed(decode=False)
    assert of(run, "audit_suits_real_time").title.endswith("(forward, batch 1, length 128)")
    assert of(run, "audit_suits_server").title.count("forward, batch 16") in (0, 1)


def test_a_decode_that_failed_is_not_replaced_by_reading() -> None:
    run = AuditRun(2)
    run.speed()
    [table] = next(record for record in run.reader.records() if record.probe == "InferenceSpeed").tables
    without = [column for column in table.columns if column.labels["phase"] != "decode"]
    reason = dict.fromkeys(("latency_mean", "tokens_per_second"), "the cache is of another kind")
    failed = columns(reason, phase="decode", batch=1, length=128, main=False)
    other = AuditRun(2)
    other.once("InferenceSpeed", [Table("model", ["model"], [*without, *failed])], threads=2, device="cpu")
    title = of(other, "audit_suits_real_time").title
    assert title.startswith("Not judged for real-time use here: speed was not measured (the cache is of another kind")


def test_servers_are_judged_by_decoding_many_texts_at_once(whole: AuditRun) -> None:
    assert "222 tokens/s < 1,000 (decode, batch 4, length" in of(whole, "audit_suits_server").detail


def test_speed_is_led_by_decoding_with_the_whole_grid_behind_it(whole: AuditRun) -> None:
    speed = of(whole, "audit_speed")
    assert speed.title == "Decoding makes 66.7 tokens/s (batch 1, length 128) on cpu, 2 threads"
    assert "Prefill: 2,460 tokens/s at batch 1, length 32, 3,460 tokens/s at batch 1, length 128" in speed.detail
    assert "Decode: 66.7 tokens/s at batch 1, length 32" in speed.detail
    assert speed.advice.startswith("The most throughput, 3.33 times as much, was measured at decode, batch 4, length")
    assert (speed.evidence.name, speed.evidence.n) == ("tokens_per_second", 100)


def test_edge_devices_are_judged_by_weights_cache_and_activations_of_one_example(whole: AuditRun) -> None:
    edge = of(whole, "audit_suits_edge")
    assert edge.title == (
        "Does not suit edge devices: 526 MB > 100 MB (weights 497 MB, cache 9.4 MB, activations 20 MB; "
        "batch 1, 128 tokens)"
    )
    assert "Packed as optimal: 234 MB > 100 MB (weights 204 MB, cache 9.4 MB, activations 20 MB; batch 1" in edge.detail
    assert edge.evidence.value == pytest.approx(496.7e6 + 9.4e6 + 20e6)
    assert of(whole, "audit_suits_edge", audit_memory_bytes=5.3e8).title.startswith("Suits edge devices: 526 MB ≤ 530")


def test_activations_of_an_unstated_batch_are_in_no_verdict() -> None:
    """A record as earlier versions made it: 189 MB to run, of a batch that it does not name."""
    run = AuditRun(2)
    old = columns({"parameters": 15_200_000, "model_bytes": 60.8e6})
    old += columns({"peak_bytes": 700e6, "run_bytes": 189e6}, process="fresh")
    run.once("MemoryUse", [Table("model", ["model"], old)])
    edge = of(run, "audit_suits_edge")
    assert "250 MB" not in edge.title + edge.detail
    assert edge.title == (
        "Whether it suits edge devices cannot be told: weights of 60.8 MB beside 100 MB; cache and activations of one "
        "example were not measured (not recorded for batch 1)"
    )
    run = AuditRun(2)
    run.memory("the pass was killed", scale=0.1)
    assert "not measured (the pass was killed)" in of(run, "audit_suits_edge").title


def described(run: AuditRun, **numbers: float) -> AuditRun:
    run.manifest["audited"] = {"name": "made", "about": {"target_device": numbers}}
    return run


def test_a_device_is_judged_by_its_own_numbers_and_by_hand() -> None:
    """Decoding: (492 MB + 9.4 MB) / 50 GB/s = 10.028 ms, 99.7 tokens a second; the operations take 0.246 ms."""
    run = described(made(), memory_bytes=4e9, bytes_per_second=50e9, flops_per_second=1e12)
    found = of(run, "audit_suits_device")
    assert found.title == (
        "On the device described, computed and not measured: it fits 4 GB; decoding at most 99.7 tokens/s < 1,000 "
        "(batch 1)"
    )
    assert found.evidence.value == pytest.approx(50e9 / 501.4e6)
    assert "One decoded token reads 492 MB of weights and 9.4 MB of cache (after 128 tokens)" in found.detail
    assert "at least 10 ms at 50 GB/s; its memory's bandwidth is the limit" in found.detail
    assert "Reading 128 tokens takes at least 31.5 ms: 2 × 1.2e+08 parameters × 128 operations at 1 TFLOP/s" in (
        found.detail
    ), "2 · 123e6 · 128 / 1e12 = 31.488 ms"
    assert "weights 497 MB + cache 9.4 MB + activations 20 MB at batch 1, 128 tokens are 526 MB" in found.detail
    assert "roofline" in found.advice


def test_a_device_that_is_too_small_or_half_described() -> None:
    small = of(described(made(), memory_bytes=0.5e9), "audit_suits_device")
    assert small.title.endswith("it does not fit 500 MB")
    assert "tokens/s" not in small.title
    compute = of(described(made(), flops_per_second=1e12), "audit_suits_device")
    assert "decoding" not in compute.title, "operations alone promise what no memory can deliver"
    assert not [one for one in find(made().reader) if one.kind == "audit_suits_device"]


def told(**given: Any) -> Finding:
    run = AuditRun(2)
    run.exported(**given)
    return of(run, "audit_exported_speed")


def test_a_slower_export_is_said_to_be_slower_first() -> None:
    """As was seen: int8 at 0.952 times led, and int4, 36 times slower, was in the small print."""
    found = told(int8=0.952, int4=1 / 36)
    assert found.title == (
        "Really packed, on this machine: int4 is 36 times slower and int8 is slower (0.952 times as fast)"
    )
    assert found.evidence.value == pytest.approx(1 / 36)
    assert "not time" in found.advice


def test_what_is_faster_is_said_with_its_interval_and_its_decoding() -> None:
    fast = told()
    assert (
        fast.title == "Really packed, on this machine: int8 is slower (0.9 times as fast) and int4 is 1.6 times as fast"
    )
    assert "the model itself 20 ms a pass in 96 MB; int8 22.2 ms a pass in 30 MB; int4 12.5 ms a pass in 20 MB" in (
        fast.detail
    )
    assert "int4 1.6 (95 % interval 1.58 to 1.62)" in fast.detail
    assert "use int4 through torchao" in fast.advice
    assert "through torchao" not in told(decoding=0.5).advice, "faster passes do not help whoever decodes"
    assert "Decoding at batch 1: int8 is 2 times slower and int4 is 2 times slower." in told(decoding=0.5).detail
    assert told(int4="no kernel here").title == "Really packed, on this machine: int8 is slower (0.9 times as fast)"
    assert told(int8=1.004, int4="none").title == "Really packed, on this machine: int8 is as fast"
