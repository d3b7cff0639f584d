"""What fewer bits do to the embeddings of an audited encoder, which has no head and no labels."""

from __future__ import annotations

from learnscope.findings import analysis, not_an_audit
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import size
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

MOST = 6
"""Configurations that are told of."""


@analysis(place=182, check="embeddings (audit)", unless=not_an_audit)
def audit_embeddings(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001 (judged by no cut)
    """Of outputs that are vectors of numbers: their cosine with the model's own, smallest size last."""
    part = read_audit(reader).configurations
    if part is None or part.judged_by != "mse":
        return []
    told = [item for item in part.items if item["cosine"].value is not None and item["packed_bytes"].value is not None]
    told = [item for item in told if item.name != "original"]
    uniform = [item for item in told if item.family == "uniform"] or told
    ordered = sorted(uniform, key=lambda item: -(item["packed_bytes"].value or 0.0))[:MOST]
    if not ordered:
        return []
    shown = next((item for item in ordered if item.name == "uniform_4"), ordered[-1])
    each = "; ".join(
        f"{item.name} 1 − {_distance(item['cosine'].value)} in {size(item['packed_bytes'].value or 0)}"
        for item in ordered
    )
    return [
        Finding(
            kind="audit_embeddings", severity="info",
            title=f"At {shown.name}, outputs keep a mean cosine of 1 − {_distance(shown['cosine'].value)} with the "
            "model's own",
            detail=f"Mean cosine of an output with the model's own{part.on}: {each}. Distances are of the outputs "
            "themselves, without any labels.",
            advice="Whether that is near enough is known by what the outputs are for: compare the neighbours that a "
            "search returns before and after.",
            evidence=Evidence(probe=part.probe, name="cosine", n=part.examples or 1, value=shown["cosine"].value),
            scopes=[item.name for item in ordered],
        )
    ]  # fmt: skip


def _distance(cosine: float | None) -> str:
    return num(max(0.0, 1 - (cosine or 0.0)))
