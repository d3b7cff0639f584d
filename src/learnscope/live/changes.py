"""What a browser lacks of a page: parts that changed since its version, of panels those on its screen, and of curves
the steps that it does not have yet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from learnscope.report.page.packing import Columns

PANELS = ("main", "panels", "grids")
"""The lists of a page whose entries are drawn, each with an id."""
NUMBERS = ("steps", "v", "low", "high", "mean", "bad", "confidence", "variability", "correctness", "pixels")
"""The keys under which a page has references to columns."""
LATE = 64
"""Steps by which records may be out of order: so many are sent again."""


@dataclass(frozen=True)
class Wanted:
    """A panel on the screen of a browser, with the version and the last step that it has of it."""

    id: str
    version: int
    after: int | None = None

    @classmethod
    def of(cls, text: str) -> Wanted:
        """
        >>> Wanted.of("3:120:Loss/loss/model"), Wanted.of("3::main/loss")
        (Wanted(id='Loss/loss/model', version=3, after=120), Wanted(id='main/loss', version=3, after=None))
        """
        version, after, name = text.split(":", 2)
        return cls(name, int(version), int(after) if after else None)


class Snapshot:
    """A page at one moment: its body, and of every part since which version it has been as it is."""

    def __init__(self, body: dict[str, Any], columns: Columns, before: Snapshot | None) -> None:
        self.body, self.columns = body, columns
        self.version: int = before.version + 1 if before else 1
        known = before.digests if before else {}
        since = before.since if before else {}
        self.digests: dict[tuple[str, str], bytes] = {part: self._digest(content) for part, content in _parts(body)}
        self.since: dict[tuple[str, str], int] = {
            part: since[part] if known.get(part) == digest else self.version for part, digest in self.digests.items()
        }
        ids = [[entry["id"] for entry in body.get(name) or ()] for name in PANELS]
        self.layout = hashlib.sha256(json.dumps([body.get("kind"), ids]).encode()).hexdigest()[:16]

    def _digest(self, content: Any) -> bytes:
        digest = hashlib.blake2b(digest_size=16)

        def take(numbers: NDArray[Any]) -> str:
            digest.update(numbers.tobytes())
            return ""

        plain = _walk(content, lambda _, reference: take(self.columns.numbers(reference)))
        digest.update(json.dumps(plain, sort_keys=True).encode())
        return digest.digest()

    def changes(self, version: int, wanted: Sequence[Wanted]) -> bytes:
        """What a browser with this version of the page lacks, packed as a page is."""
        columns = Columns()
        head = {
            key: self._copied(value, columns)
            for key, value in self.body.items()
            if key not in (*PANELS, "runs", "live") and self.since["head", key] > version
        }
        rows = [row for row in self.body.get("runs") or () if self.since["runs", row["name"]] > version]
        places = {(entry["id"]): (name, entry) for name in PANELS for entry in self.body.get(name) or ()}
        panels = [
            {"where": places[each.id][0], **self._grown(places[each.id][1], each.after, columns)}
            for each in wanted
            if each.id in places and self.since["panel", each.id] > each.version
        ]
        body = {"version": self.version, "layout": self.layout, "head": head, "rows": rows, "panels": panels}
        return columns.pack(body)

    def _copied(self, content: Any, columns: Columns) -> Any:
        return _walk(content, lambda key, reference: self._moved(key, self.columns.numbers(reference), columns))

    def _moved(self, key: str, numbers: NDArray[Any], columns: Columns) -> list[Any]:
        return columns.steps(numbers) if key in ("steps", "bad", "pixels") else columns.floats(numbers)

    def _grown(self, entry: dict[str, Any], after: int | None, columns: Columns) -> dict[str, Any]:
        """A panel; of its curves and cells only those from a little before `after` on. A browser whose buckets hold
        another number of measurements asks again, for all of them."""
        if after is None:
            return dict(self._copied(entry, columns))
        since = max(0, after - LATE)
        if "curves" in entry:
            curves = [self._curve(each, since, columns) for each in entry["curves"]]
            return {**self._copied({k: v for k, v in entry.items() if k != "curves"}, columns), "curves": curves}
        if "parts" in entry or "steps" not in entry:
            return dict(self._copied(entry, columns))
        steps = self.columns.numbers(entry["steps"])
        new = steps > since
        cells: dict[str, Any] = {
            key: columns.floats(self.columns.numbers(entry[key]).reshape(len(entry["scopes"]), -1)[:, new])
            for key in ("low", "high")
            if key in entry
        }
        ends: dict[str, Any] = {"steps": columns.steps(steps[new]), "after": since}
        return entry | cells | ends

    def _curve(self, curve: dict[str, Any], since: int, columns: Columns) -> dict[str, Any]:
        values = [key for key in ("v", "low", "high", "mean") if key in curve]
        steps = self.columns.numbers(curve["steps"])
        new = steps > since
        rest: dict[str, Any] = self._copied({k: v for k, v in curve.items() if k not in ("steps", *values)}, columns)
        numbers: dict[str, Any] = {key: columns.floats(self.columns.numbers(curve[key])[new]) for key in values}
        ends: dict[str, Any] = {"steps": columns.steps(steps[new]), "after": since}
        return rest | numbers | ends


def _parts(body: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Every part that is sent by itself."""
    for key, value in body.items():
        if key in PANELS:
            yield from ((("panel", entry["id"]), entry) for entry in value)
        elif key == "runs":
            yield from ((("runs", row["name"]), row) for row in value)
        elif key not in ("live", "written"):
            yield ("head", key), value
    yield ("head", "written"), None


def _walk(content: Any, number: Callable[[str, list[Any]], Any], key: str = "") -> Any:
    """The same content with something else in the place of references to columns."""
    if isinstance(content, dict):
        return {name: _walk(value, number, name) for name, value in content.items()}
    if isinstance(content, list):
        if key in NUMBERS and content and content[0] in ("f", "i", "s", "n"):
            return number(key, content)
        return [_walk(value, number) for value in content]
    return content
