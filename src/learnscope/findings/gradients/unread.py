"""Embeddings that get no gradient while all that comes after them does: what is read of them is not trained."""

from __future__ import annotations

from collections.abc import Sequence

from learnscope.findings import findings_of
from learnscope.findings.gradients.absent import absent
from learnscope.reading.cuts import Cuts
from learnscope.store.reader import RunReader


def unread_embeddings(reader: RunReader, cuts: Cuts) -> Sequence[str]:
    """Their names, if embeddings are all that has a gradient of exactly 0 to the end.

    An embedding has no units that could be dead: either only its padding row is read, which torch never trains, or
    nothing that it gives reaches the loss.
    """
    zero = [f for f in findings_of(absent, reader, cuts) if f.kind == "zero_gradients" and f.severity != "info"]
    types = (reader.manifest.get("model") or {}).get("layer_types") or {}
    names = [name for finding in zero for name in finding.scopes]
    return names if all("Embedding" in str(types.get(name, "")) for name in names) else []
