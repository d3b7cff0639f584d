"""What every page must agree with itself about."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from learnscope.run import Run
from report.page.reading import numbers, payload_of


def check_page(page: Path, run: Run) -> None:
    """One best step, one beginning of an event, and a panel that has the steps of each finding."""
    body = payload_of(page)
    curves = {each["name"]: each for panel in body["main"] if panel["id"] == "main/loss" for each in panel["curves"]}
    best = body["verdict"]["best"]
    if "holdout" in curves:
        holdout, steps = numbers(body, curves["holdout"]["v"]), numbers(body, curves["holdout"]["steps"])
        assert best["step"] == steps[int(np.nanargmin(holdout))]
        assert math.isclose(best["value"], float(np.nanmin(holdout)), rel_tol=1e-6)
    drawn = {each["id"]: each for part in ("panels", "grids") for each in body[part]}
    known = {*drawn, *(each["id"] for part in ("flat", "once") for each in body[part])}
    assert [each["fingerprint"] for each in body["findings"]] == [each.fingerprint for each in run.findings()]
    failed = {check["name"] for check in body["checks"] if check["state"] == "failed"}
    assert bool(failed) == any(each["severity"] != "info" for each in body["findings"])
    for finding in body["findings"]:
        assert finding["panel"] in known, finding["title"]
        if finding["kind"] in ("overfitting", "worsening"):
            assert f"step {best['step']:,}" in finding["title"]
        if finding["kind"] == "nonfinite":
            assert math.ceil(body["breaks"]["spans"][0][0]) == finding["steps"][0]
        panel = drawn.get(finding["panel"])
        if panel is not None and finding["steps"] is not None:
            ends = [numbers(body, each["steps"]) for each in panel.get("curves", [panel])]
            assert min(int(each[0]) for each in ends) <= finding["steps"][1]
