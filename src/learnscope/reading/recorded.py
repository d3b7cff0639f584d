"""The probes of a run with the names that they recorded, as the records and the manifest have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from learnscope.quantities import declared, quantity_of
from learnscope.reading.gather import class_of
from learnscope.store.backend import FolderBackend
from learnscope.store.reader import RunReader


def recorded_probes(folder: str | Path) -> list[dict[str, Any]]:
    """One entry a probe, in the form of `learnscope probes --json`; `names` are those that were recorded."""
    reader = RunReader(FolderBackend.existing(Path(folder)))
    entries: dict[str, dict[str, Any]] = {}
    names: dict[str, dict[str, dict[str, Any]]] = {}
    for record in reader.records():
        here = names.setdefault(record.probe, {})
        for table in record.tables:
            for column in table.columns:
                quantity = here.setdefault(column.name, _meaning(record.probe, column.name))
                if table.kind not in quantity["kinds"]:
                    quantity["kinds"].append(table.kind)
                quantity["labels"] |= dict.fromkeys(column.labels, "")
    for label, options in (reader.manifest.get("probes") or {}).items():
        entries[label] = {
            "probe": label,
            "summary": declared()[class_of(label)].records
            if class_of(label) in declared()
            else "a probe of the user's",
            "looks": f"every={options.get('every')}, at={options.get('at')!r}",
            "needs": options.get("needs") or [],
            "cost": _mean_cost(reader, label),
            "names": list(names.get(label, {}).values()),
        }
    return list(entries.values())


def _meaning(label: str, name: str) -> dict[str, Any]:
    quantity = quantity_of(class_of(label), name)
    body = {} if quantity is None else quantity.to_json()
    return body | {"name": name, "kinds": [], "labels": {}}


def _mean_cost(reader: RunReader, label: str) -> str:
    costs = [record.cost for record in reader.records(label) if not record.error]
    return f"{1e3 * sum(costs) / len(costs):.3g} ms" if costs else "nothing: it did not fire"
