"""What a run says about the trainer that it was watched in."""

from __future__ import annotations

from typing import Any

from learnscope.store.reader import RunReader

EVALUATION_SET, VALIDATION_SET = "evaluation set", "validation set"
"""The source of a holdout that is the trainer's own data to evaluate on, in the trainer's words."""
TRAINING_SET = "training set"
"""The source of a holdout that is a sample of what is trained on."""
GIVEN = "holdout="
"""The source of a holdout that the user passed."""
NONE = "none: "
"""Begins the source where there is no holdout; the reason follows."""


def trainer_of(reader: RunReader) -> dict[str, Any] | None:
    """Class and versions of the trainer; None for a loop of the user's own."""
    found = _last(reader, "trainer")
    return found if isinstance(found, dict) else None


def holdout_source(reader: RunReader) -> str:
    """Where the data to evaluate on come from, where a trainer has chosen them; else empty."""
    found = _last(reader, "holdout")
    return str(found.get("source") or "") if isinstance(found, dict) else ""


def _last(reader: RunReader, fact: str) -> Any:
    attempts = reader.manifest.get("attempts") or []
    return next((entry[fact] for entry in reversed(attempts) if fact in entry), None)
