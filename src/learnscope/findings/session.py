"""The recording itself: probes that failed, records and memories that were lost, firings that a budget left out."""

from __future__ import annotations

from typing import Any

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import between, capital, count, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.columnar.columns import Heads
from learnscope.store.reader import RunReader


@analysis(place=130, check="the recording itself", unless=lambda _reader: None)
def session(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (nothing here has a cut)
    columns = reader.columns()
    heads, problems = columns.heads, list(reader.last_problems)
    failing = [probe for probe in heads.probes if heads.failed[heads.of(probe)].any()]
    findings = [_failed(probe, heads) for probe in failing]
    findings += [_torn(problems)] if problems else []
    findings += [_source_torn(reader.source_problems)] if reader.source_problems else []
    findings += [_lost(reader.losses, reader)] if reader.losses else []
    findings += [_state_missing(entry) for entry in reader.manifest.get("attempts") or [] if entry.get("state_lost")]
    noted = {probe: [note for note in columns.notes(probe, "skipped_by_budget") if note[1]] for probe in heads.probes}
    return findings + [_skipped(probe, heads, notes, reader) for probe, notes in noted.items() if notes]


def _failed(probe: str, heads: Heads) -> Finding:
    records = heads.of(probe)
    failures = records[heads.failed[records]].tolist()
    messages = [heads.errors[place] for place in failures]
    kinds = {message.split(":")[0] for message in messages}
    first, last = int(heads.step[failures[0]]), int(heads.step[failures[-1]])
    # a message may be a page long, and its first line is the one that names the error
    message = messages[0].strip().splitlines()[0][:300]
    others = f" The failures are of {count(len(kinds), 'kind')}: {', '.join(sorted(kinds))}." if len(kinds) > 1 else ""
    remaining = len(records) - len(failures)
    effect = f"What {probe} shows rests on {count(remaining, 'firing')}"
    return Finding(
        kind="probe_failed",
        severity="warning",
        title=f"{probe} failed in {len(failures)} of {count(len(records), 'firing')}, first at step {first:,}",
        detail=f"{capital(between(first, last))}. First message: {message}.{others}",
        advice=(effect if remaining else f"Nothing that {probe} would have shown is in this run")
        + "; watch(..., strict=True) stops at the failure with its traceback.",
        evidence=evidence_over((first, last), probe, "error", len(records), float(len(failures))),
    )


def _torn(problems: list[str]) -> Finding:
    return Finding(
        kind="torn_lines",
        severity="warning",
        title=f"{count(len(problems), 'line')} of the record could not be read",
        detail=f"{problems[0]}." + (f" The last: {problems[-1]}." if len(problems) > 1 else ""),
        advice="A killed process leaves one such line, and it costs one firing: nothing to do."
        if len(problems) == 1
        else f"{len(problems):,} of them are more than one kill leaves: look for a full disk, for a second writer of "
        "this folder, or for as many kills as there are attempts.",
        evidence=Evidence(probe="records.jsonl", name="line", n=len(problems), value=float(len(problems))),
    )


def _source_torn(problems: list[str]) -> Finding:
    return Finding(
        kind="source_torn",
        severity="warning",
        title=f"{count(len(problems), 'part')} of what this run was imported from could not be read",
        detail=f"{problems[0]}." + (f" The last: {problems[-1]}." if len(problems) > 1 else ""),
        advice="A killed process leaves one such end, and nothing before it is lost. If it was still being written, "
        "import it again when it is finished.",
        evidence=Evidence(probe="run.json", name="imported", n=len(problems), value=float(len(problems))),
    )


def _lost(losses: list[str], reader: RunReader) -> Finding:
    entries = [entry.get("records") or {} for entry in reader.manifest.get("attempts") or []]
    written = sum(entry.get("written") or 0 for entry in entries)
    lost = sum(entry.get("lost") or 0 for entry in entries)
    there = sum((reader.last_counts or {}).values())
    return Finding(
        kind="records_lost",
        severity="warning",
        title=f"{count(max(written + lost - there, lost), 'record')} of {written + lost:,} are missing",
        detail=f"{capital('; '.join(losses))}.",
        advice="What the other findings and the figures show leaves them out. A full disk, a limit on the size of "
        "files, and another program that cuts or removes records.jsonl lose records.",
        evidence=Evidence(probe="records.jsonl", name="record", n=written + lost, value=float(there)),
    )


def _state_missing(entry: dict[str, Any]) -> Finding:
    step, probes = int(entry["start_step"]), [str(label) for label in entry["state_lost"]]
    return Finding(
        kind="state_missing",
        severity="warning",
        title=f"Resumed at step {step:,} without what {count(len(probes), 'probe')} remembered",
        detail=f"No state was saved at this step. Lost is the memory of {', '.join(probes)}: averages start again, and "
        "changes of the weights are measured from this step on.",
        advice="w.save_checkpoint(path, {...}) saves the state first and your checkpoint after it, so that a kill "
        "between the two leaves no checkpoint without its state.",
        evidence=Evidence(probe=probes[0], name="state", n=len(probes), first_step=step, value=float(len(probes))),
    )


def _skipped(probe: str, heads: Heads, notes: list[tuple[int, Any]], reader: RunReader) -> Finding:
    records = heads.of(probe)
    first, last = int(heads.step[records[0]]), notes[-1][0]
    skipped = sum(int(note) for _, note in notes)
    due = skipped + len(records)
    shares = [(entry.get("cost") or {}).get("budget") for entry in reader.manifest.get("attempts", [])]
    budget = next((share for share in reversed(shares) if share), None)
    reason = f" to hold a budget of {percent(float(budget))} of the wall time" if budget else ""
    seconds = sum(heads.cost[records].tolist()) / len(records)
    return Finding(
        kind="skipped_by_budget",
        severity="info",
        title=f"{probe} was skipped in {skipped:,} of {count(due, 'due firing')}",
        detail=f"{skipped:,} firings were left out{reason}, between steps {first:,} and {last:,}; "
        f"the {len(records):,} that took place cost {num(1e3 * seconds)} ms each.",
        advice=f"A larger every= for {probe} spaces its firings evenly; a larger budget= takes more of them.",
        evidence=evidence_over((first, last), probe, "skipped_by_budget", due, float(skipped)),
    )
