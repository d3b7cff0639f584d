"""The damage of every unit at every width, in a file, and the best mix computed from it, without the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from learnscope.store.files import write_text
from learnscope.tensor.bits.allocation import Allocation, NoAllocation, allocate

SCHEMA = 1
_KIND = "learnscope bit sensitivities"


class SensitivityError(ValueError):
    """A file that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivities:
    """Damage and bytes of each unit at each width, each measured with all other units as stored."""

    damage: Mapping[str, Mapping[int, float]]
    """Unit → bits → KL in nats per position, or mean squared error of the outputs (`judged_by`). NaN: not measured."""
    size: Mapping[str, Mapping[int, int]]
    """Unit → bits → bytes of the unit, scales and zero points included."""
    stored: Mapping[str, int]
    """Unit → bytes as stored, which is always possible and does no damage."""
    weights: Mapping[str, int]
    other_bytes: int
    """Of the model outside of its units."""
    judged_by: str = "kl"
    scheme: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    """The caller's name for the model, such as a digest of the weights."""
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
            raise TypeError("give one of max_bytes= and max_kl=: the other one is minimised")
        # a number of bits above all others stands for "as stored"
        as_stored = {unit: max(32, *(bits + 1 for bits in widths)) for unit, widths in self.damage.items()}
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
            advice = "Give more room, or measure fewer bits."
            if broken:
                advice = (
                    f"The damage of {len(broken)} units, such as {broken[0]}, is not finite at any of the bits, so "
                    "that they stay as stored: look whether the model's own outputs are finite."
                )
            raise NoAllocation(
                f"max_bytes={max_bytes} cannot be kept: the smallest mix takes {least} bytes with its embeddings and "
                f"norms. {advice}"
            ) from error
        choice = {unit: bits for unit, bits in allocation.choice.items() if bits != as_stored[unit]}
        return replace(allocation, choice=choice, bytes=allocation.bytes + self.other_bytes)


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
            "damage": {str(b): d if math.isfinite(d) else str(d) for b, d in sorted(widths.items())},
            "bytes": {str(bits): sensitivities.size[unit][bits] for bits in sorted(widths)},
        }
        for unit, widths in sensitivities.damage.items()
    }
    body = {
        "kind": _KIND,
        "schema": SCHEMA,
        **{name: getattr(sensitivities, name) for name in ("model", "judged_by", "examples")},
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
        raise SensitivityError(f"{path} is not a file of bit sensitivities: give one that was saved as such")
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
    for unit, entry in units.items():
        if entry["damage"].keys() != entry["bytes"].keys() or min(map(int, entry["bytes"].values())) < 0:
            raise ValueError(f"{unit} has damages and bytes for different bits, or bytes below 0")
    return Sensitivities(
        damage={u: {int(b): _number(value) for b, value in entry["damage"].items()} for u, entry in units.items()},
        size={u: {int(b): int(value) for b, value in entry["bytes"].items()} for u, entry in units.items()},
        stored={unit: int(entry["stored_bytes"]) for unit, entry in units.items()},
        weights={unit: int(entry["weights"]) for unit, entry in units.items()},
        other_bytes=int(body["other_bytes"]),
        judged_by=str(body["judged_by"]),
        scheme=dict(body["scheme"]),
        model=str(body["model"]),
        examples=body["examples"],
    )


def _number(value: Any) -> float:
    """JSON has no NaN and Inf: they are text."""
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in ("nan", "inf", "-inf")):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
