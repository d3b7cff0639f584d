"""Why a scope has no number: the reasons of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from learnscope.core.subject import Subject


def members_of_scopes(subject: Subject, kind: str, positions: Sequence[int]) -> list[list[int]]:
    """Positions of the parameters in each scope, in the order of `subject.segments(kind, positions).scopes`."""
    if kind == "model":
        return [list(positions)] if positions else []
    chosen = set(positions)
    inside = ([position for position in members if position in chosen] for members in subject.scopes(kind).values())
    return [members for members in inside if members]


def reasons_of_scopes(
    subject: Subject, kind: str, positions: Sequence[int], missing: Mapping[int, str]
) -> dict[int, str]:
    """By place among the scopes: why nothing is known of one, where that holds for every member.

    `missing` has the reason of each parameter, by position, that was not measured.
    """
    return {
        place: "; ".join(dict.fromkeys(missing[position] for position in members))
        for place, members in enumerate(members_of_scopes(subject, kind, positions))
        if all(position in missing for position in members)
    }
