"""The damage of every unit at every width, in a file, and the best mix computed from it, without the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learnscope.store.files import write_text
from learnscope.tensor.bits.allocation import Allocation, NoAllocation, allocate

SCHEMA = 1
_KIND = "learnscope bit sensitivities"


_MORE = "Give more room, or measure fewer bits."
_BROKEN = (
    "The damage of {} units, such as {}, is not finite at any of the bits, so that they stay as stored: look whether "
    "the model's own outputs are finite."
)


class SensitivityError(ValueError):
    """A file that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivities:
    """Damage and bytes of each unit at each width, each measured with all other units as stored.

    damage: unit → bits → KL in nats per position, or mean squared error of the outputs (`judged_by`). NaN: not
        measured.
    size: unit → bits → bytes of the unit, scales and zero points included.
    stored: unit → bytes as stored, which is always possible and does no damage.
    other_bytes: bytes of the model outside of its units.
    model: the caller's name for the model, such as a digest of the weights.
    """

    damage: Mapping[str, Mapping[int, float]]
    size: Mapping[str, Mapping[int, int]]
    stored: Mapping[str, int]
    weights: Mapping[str, int]
    other_bytes: int
    judged_by: str = "kl"
    scheme: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    examples: int | None = None

    def bytes_of(self, bits: Mapping[str, int]) -> int:
        """Bytes of the whole packed model."""
        return self.other_bytes + sum(self.size[u][bits[u]] if u in bits else b for u, b in self.stored.items())

    def solve(self, *, max_bytes: int | None = None, max_kl: float | None = None) -> Allocation:
        """The mix with the least total damage within `max_bytes`, or the fewest bytes within `max_kl`.

        `max_bytes` is for the whole packed model; `max_kl` is for the sum, in the unit of `judged_by`. A unit that is
        not in the choice stays as stored. Damages are measured one unit at a time and assumed to add up.
        """
        check_budget("solve", max_bytes, max_kl)
        if (max_bytes is None) == (max_kl is None):
            raise TypeError("give one of max_bytes= and max_kl=: the other is what is made small")
        as_stored = {unit: _beyond(widths) for unit, widths in self.damage.items()}
        damage = {unit: {**widths, as_stored[unit]: 0.0} for unit, widths in self.damage.items()}
        size = {unit: {**self.size[unit], as_stored[unit]: self.stored[unit]} for unit in damage}
        within = None if max_bytes is None else max_bytes - self.other_bytes
        try:
            allocation = allocate(damage, size, max_bytes=within, max_damage=max_kl)
        except NoAllocation as error:
            least = self.other_bytes + sum(
                min(size[u][w] for w, d in widths.items() if math.isfinite(d)) for u, widths in damage.items()
            )
            broken = [unit for unit, widths in self.damage.items() if not any(map(math.isfinite, widths.values()))]
            raise NoAllocation(
                f"max_bytes={max_bytes} cannot be kept: the smallest mix takes {least} bytes with its embeddings and "
                "norms. " + (_BROKEN.format(len(broken), broken[0]) if broken else _MORE)
            ) from error
        choice = {unit: bits for unit, bits in allocation.choice.items() if bits != as_stored[unit]}
        return Allocation(choice, allocation.damage, allocation.bytes + self.other_bytes, allocation.status)


def check_budget(owner: str, max_bytes: Any, max_kl: Any) -> None:
    """Refuse an invalid size or damage before anything is measured for it."""
    for name, value, needed in (
        ("max_bytes", max_bytes, "a number of bytes above 0 is needed"),
        ("max_kl", max_kl, "nats from 0 on are needed"),
    ):
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not (number and (value > 0 or (value == 0 and name == "max_kl"))):
            raise SensitivityError(f"{owner}({name}={value!r}): {needed}")


def save(sensitivities: Sensitivities, path: str | Path) -> None:
    """Write the file, whole or not at all; the same numbers give the same bytes: it holds no time stamp."""
    units = {
        unit: {
            "weights": sensitivities.weights[unit],
            "stored_bytes": sensitivities.stored[unit],
            "damage": {str(bits): _number(value) for bits, value in sorted(widths.items())},
            "bytes": {str(bits): sensitivities.size[unit][bits] for bits in sorted(widths)},
        }
        for unit, widths in sensitivities.damage.items()
    }
    body = {
        "kind": _KIND,
        "schema": SCHEMA,
        "model": sensitivities.model,
        "judged_by": sensitivities.judged_by,
        "examples": sensitivities.examples,
        "scheme": dict(sorted(sensitivities.scheme.items())),
        "other_bytes": sensitivities.other_bytes,
        "units": units,
    }
    write_text(Path(path), json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def load(path: str | Path, *, model: str | None = None) -> Sensitivities:
    """Read a file that `save` wrote; with `model`, refuse a file of another model."""
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SensitivityError(f"there is no file {path}: save the sensitivities first") from error
    except ValueError as error:
        raise SensitivityError(f"{path} is damaged ({error}): measure the sensitivities again") from error
    if not isinstance(body, dict) or body.get("kind") != _KIND:
        raise SensitivityError(f"{path} is no file of bit sensitivities: give one that was saved as such")
    if body.get("schema") != SCHEMA:
        raise SensitivityError(
            f"{path} has schema {body.get('schema')}, this version reads {SCHEMA}: update learnscope, or measure again"
        )
    try:
        sensitivities = _read(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SensitivityError(f"{path} is damaged ({error!r}): measure the sensitivities again") from error
    if model is not None and sensitivities.model != model:
        raise SensitivityError(
            f"{path} is of another model ({sensitivities.model or 'not said'}, not {model}): sensitivities do not "
            "carry over, measure them for this one"
        )
    return sensitivities


def _read(body: Mapping[str, Any]) -> Sensitivities:
    units: dict[str, Any] = body["units"]
    if not units:
        raise ValueError("no units")
    damage = {u: {int(b): _from(value) for b, value in entry["damage"].items()} for u, entry in units.items()}
    size = {u: {int(b): int(value) for b, value in entry["bytes"].items()} for u, entry in units.items()}
    for unit, widths in damage.items():
        if min(size[unit].values(), default=-1) < 0:
            raise ValueError(f"{unit} has no bytes, or fewer than 0")
        if widths.keys() != size[unit].keys():
            raise ValueError(f"{unit} has damages and bytes for different bits")
    return Sensitivities(
        damage=damage,
        size=size,
        stored={unit: int(entry["stored_bytes"]) for unit, entry in units.items()},
        weights={unit: int(entry["weights"]) for unit, entry in units.items()},
        other_bytes=int(body["other_bytes"]),
        judged_by=str(body["judged_by"]),
        scheme=dict(body["scheme"]),
        model=str(body["model"]),
        examples=body["examples"],
    )


def _beyond(widths: Mapping[int, float]) -> int:
    """A number of bits that is not among these, to stand for "as stored"."""
    return max(32, *(bits + 1 for bits in widths))


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _from(value: Any) -> float:
    if isinstance(value, str):
        if value not in ("nan", "inf", "-inf"):
            raise ValueError(f"{value!r} is no number")
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)
