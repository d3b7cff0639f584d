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
    names: dict[str, dict[str, dict[str, Any]]] = {}
    costs: dict[str, list[float]] = {}
    for record in reader.records():
        entries = names.setdefault(record.probe, {})
        costs.setdefault(record.probe, []).extend([] if record.error else [record.cost])
        for table in record.tables:
            for column in table.columns:
                quantity = quantity_of(class_of(record.probe), column.name)
                meaning = {} if quantity is None else quantity.to_json()
                entry = entries.setdefault(column.name, meaning | {"name": column.name, "kinds": [], "labels": {}})
                if table.kind not in entry["kinds"]:
                    entry["kinds"].append(table.kind)
                entry["labels"] |= dict.fromkeys(column.labels, "")
    mean_costs = {label: f"{1e3 * sum(spent) / len(spent):.3g} ms" for label, spent in costs.items() if spent}
    return [
        {
            "probe": label,
            "summary": getattr(declared().get(class_of(label)), "records", "a probe of the user's"),
            "looks": f"every={options.get('every')}, at={options.get('at')!r}",
            "needs": options.get("needs") or [],
            "cost": mean_costs.get(label, "nothing: it did not fire"),
            "names": list(names.get(label, {}).values()),
        }
        for label, options in (reader.manifest.get("probes") or {}).items()
    ]
