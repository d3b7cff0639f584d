"""What each way into a session can give to a probe, and what to do where it cannot."""

from __future__ import annotations

from learnscope.core.probe import NEEDS, Probe


def check_needs(probe: Probe, source: str, provides: frozenset[str]) -> None:
    """Refuse a probe now, by name, rather than at step 100 in silence."""
    name = type(probe).__name__
    for need in sorted(probe.needs):
        if need not in NEEDS:
            raise ValueError(f"{name} needs {need!r}, which is not a need; these are: {', '.join(NEEDS)}")
        if need not in provides:
            raise ValueError(f"{name} needs {need!r}, which {source} does not have: {CURES[need].get(source, '')}")
    if "grads" in probe.needs and source == "watch" and probe.at != "before_step":
        raise ValueError(
            f"{name}(at={probe.at!r}) needs gradients, which are sure to be there only before the optimizer's step: "
            "use at='before_step'"
        )


_ONLY_LIVE = {
    "replay": "saved checkpoints do not carry it; use this probe in ls.watch",
    "audit": "a finished model does not carry it; use this probe in ls.watch",
}
_DATA = "and a task= if the batches are not recognised"
CURES: dict[str, dict[str, str]] = {
    "grads": {
        "watch": "pass the optimizer, ls.watch(model, optimizer), or call w.step() yourself",
        "replay": f"pass train= or holdout= for a fixed batch to differentiate, {_DATA}",
        "audit": f"pass labelled data, {_DATA}",
    },
    "previous": {"audit": "pass base=, the weights to compare with"},
    "holdout": dict.fromkeys(("watch", "replay"), f"pass holdout= (a loader, data set or list of batches), {_DATA}")
    | {"audit": f"pass data, {_DATA}"},
    "features": dict.fromkeys(("watch", "replay"), f"pass holdout= to compute them on, {_DATA}")
    | {"audit": f"pass data, {_DATA}"},
    "train_data": dict.fromkeys(("watch", "replay", "audit"), "pass train= (a loader, data set or list of batches)"),
    "test_data": dict.fromkeys(("watch", "replay", "audit"), "pass test= (a loader, data set or list of batches)"),
    "optimizer": {"watch": "pass the optimizer: ls.watch(model, optimizer)", **_ONLY_LIVE},
    "examples": {
        "replay": f"pass train=, the data whose examples are followed, {_DATA}",
        "audit": "one model is one presentation; use this probe in ls.watch or ls.replay",
    },
    "batch": _ONLY_LIVE,
    "logged": _ONLY_LIVE,
}
