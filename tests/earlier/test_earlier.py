"""Folders that an earlier version wrote open, and give the frames, findings and tables that it read from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import learnscope as ls

FOLDERS = Path(__file__).parent / "folders"
NAMES = ("run", "vanishing", "audit", "adapters", "telemetry")


def numbers(text: str) -> list[str]:
    """What must not change when a sentence is put better."""
    return re.findall(r"\d[\d,.]*(?:e[-+]\d+)?", text)


RENAMED = {"vanishing_gradients": "vanishing", "exploding_gradients": "exploding", "outside_optimizer": "not_optimised"}


NO_NEWS = {"adapters": ("frozen",), "audit": ("audit_uniform_as_good", "audit_sensitive_units")}
"""Findings that are not raised any more: that the base of an adapter is frozen says nothing, nor that a mix is no
better than the width that it is; and one unit is always the most sensitive."""


JUDGED_ANEW = {
    "audit": {
        "audit_speed": "Decoding makes 643 tokens/s (batch 1, length 12) on cpu, 1 thread",
        "audit_exported_speed": "Really packed, on this machine: int8 cannot be told from the model",
        "audit_robustness_gap": None,
        "audit_quantised_robustness": None,
        "audit_embedding_curvature": "",
        "audit_suits_real_time": "Does not suit real-time use here: 643 tokens/s < 1,000 (decode, batch 1, length 12)",
        "audit_suits_edge": "Whether it suits edge devices cannot be told: weights of 30 kB beside 100 MB; cache and "
        "activations of one example were not measured (not recorded for batch 1)",
        "audit_suits_server": "Not judged for servers open to strangers: what changed prompts do was not measured "
        "(PromptPerturbation was not run)",
    }
}
"""Kinds that say something else of the same numbers today, with their titles, and None where nothing is said any more:
speed is that of decoding, memory that of one example, a ratio needs an interval, and nobody can send embeddings."""


def core(finding: dict[str, Any]) -> dict[str, Any]:
    """A detail may go on with more than it said then: what the steps did to the weights."""
    said = {part: numbers(finding[part].split(" A step changes")[0]) for part in ("title", "detail")}
    kind = RENAMED.get(finding["kind"], finding["kind"])
    return {"kind": kind} | {key: finding[key] for key in ("severity", "scopes", "evidence")} | said


@pytest.mark.parametrize("name", NAMES)
def test_the_same_frame(name: str) -> None:
    now, then = ls.open_run(FOLDERS / name).frame(), pd.read_parquet(FOLDERS / f"{name}.frame.parquet")
    assert len(then) > 100
    pd.testing.assert_frame_equal(now, then, check_dtype=False, check_exact=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_findings(name: str) -> None:
    now = [json.loads(json.dumps(finding.to_json())) for finding in ls.open_run(FOLDERS / name).findings()]
    earlier = json.loads((FOLDERS / f"{name}.findings.json").read_text())
    anew = JUDGED_ANEW.get(name, {})
    then = [finding for finding in earlier if finding["kind"] not in {*NO_NEWS.get(name, ()), *anew}]
    assert [core(finding) for finding in now if finding["kind"] not in anew] == [core(finding) for finding in then]
    said = {finding["kind"]: finding["title"] for finding in now if finding["kind"] in anew}
    assert set(said) == {kind for kind, title in anew.items() if title is not None}
    assert all(said[kind].startswith(title) for kind, title in anew.items() if title is not None)


def same_row(now: str, then: str) -> bool:
    """Numbers may differ by one in their last digit: from Python 3.12 on, sums of floats round differently."""

    def same(a: str, b: str) -> bool:
        first, second = (re.fullmatch(r"\s*(\d+\.(\d+))(.*)", text) for text in (a, b))
        if first is None or second is None or (len(first[2]), first[3]) != (len(second[2]), second[3]):
            return a == b
        return abs(float(first[1]) - float(second[1])) < 1.5 * 10.0 ** -len(first[2])

    cells = [row.split("|") for row in (now, then)]
    return len(cells[0]) == len(cells[1]) and all(map(same, *cells))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tables_and_figures_in_the_report(name: str, tmp_path: Path) -> None:
    written = ls.open_run(FOLDERS / name).report(tmp_path / "report").read_text()
    # what was checked is a table that earlier reports do not have
    now = re.sub(r"(?s)## Checks\n.*?(?=\n## )", "", written)
    then = (FOLDERS / f"{name}.report.md").read_text()

    def kept(text: str, pattern: str) -> list[str]:
        return [line for line in text.splitlines() if re.match(pattern, line)]

    rows = list(zip(kept(now, r"\|"), kept(then, r"\|"), strict=True))
    assert [pair for pair in rows if not same_row(*pair)] == []
    assert set(kept(then, r"!\[")) <= set(kept(now, r"!\["))
