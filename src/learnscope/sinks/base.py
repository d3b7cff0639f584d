"""Sinks: where records go besides the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from learnscope.generators import unmoved_generators
from learnscope.record import Record


class Sink(Protocol):
    """If a sink raises, there is a warning; no record is lost and training goes on.

    A session calls a sink from a thread of its own, one call after the other, so that training never waits for it. A
    sink may also have

    - `alert(finding)`: called with each alert of a session that has some (`alerts=`);
    - `open(opening)`: called once before the first record, in the thread that opens the session and with the random
      generators held: what draws a random number, as the first import of some packages does, belongs here;
    - `write_all(records)`: called in place of `write` with all that is waiting, in order;
    - `kept`: a dictionary for run.json, which `open` is given when the run is resumed;
    - `direct = True`: called at once, in the loop's own thread; for what takes no time.
    """

    def write(self, record: Record) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Opening:
    """What a sink is told when the session opens."""

    run: Path | None = None
    """The run folder; None for a run in memory."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What run.json says: model, optimizers, probes, environment."""
    kept: Mapping[str, Any] = field(default_factory=dict)
    """What the sink of the same name kept in the attempt before, if the run is resumed."""

    @property
    def name(self) -> str | None:
        """The folder's name, for tools that name their runs."""
        return None if self.run is None else self.run.resolve().name

    def config(self) -> dict[str, Any]:
        """What tools show beside a run: where its folder is, and what was trained with which optimizers."""
        told = {key: self.manifest[key] for key in ("source", "optimizers") if self.manifest.get(key)}
        model = self.manifest.get("model") or {}
        told["model"] = {key: model[key] for key in ("class", "parameters", "frozen_parameters") if key in model}
        return {"run": None if self.run is None else str(self.run.resolve()), **told}


class LastRecords:
    """A sink that holds each probe's latest record until `take` is called."""

    direct: ClassVar[bool] = True
    unlisted: ClassVar[bool] = True
    """A part of the session itself: run.json does not count what it took."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def write(self, record: Record) -> None:
        self.records[record.probe] = record

    def take(self) -> dict[str, Record]:
        taken, self.records = self.records, {}
        return taken

    def close(self) -> None:
        """Nothing to close."""


def load(module: str, sink: str, package: str, extra: str) -> Any:
    """A module of a package that only this sink needs; its import may draw a random number, which is undone."""
    try:
        with unmoved_generators():
            return import_module(module)
    except ImportError as error:
        raise ImportError(f"{sink} needs {package}: pip install learnscope[{extra}] ({error})") from error
