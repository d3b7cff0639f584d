"""The numbers that docs/guarantees.md states are those of the tests."""

from __future__ import annotations

import re
from pathlib import Path

import soak
from contract import test_harmless as harmless
from contract import trainers
from contract.probes import packaged
from faults import test_killed as killed
from faults import test_seeded_faults as faults
from hostile import test_configurations as configurations
from hostile import test_corrupted as corrupted
from hostile import test_names as names
from hostile import test_odd_tensors as odd
from hostile import test_refused_on_opening as refused
from hostile import test_secrets as secrets
from learnscope.store.query import query

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_totals_of_the_long_tests_as_they_were_kept() -> None:
    page = soak.PAGE.read_text()
    assert soak.BEGIN in page
    assert soak.with_table(page, soak.read()) == page, "run `python tests/soak.py`"


def test_counts_of_pieces_add_up_and_a_piece_that_is_run_again_counts_once(tmp_path: Path) -> None:
    kept = tmp_path / "soak.json"
    for case, number in (("lines-1000:1250", 3), ("lines-250:500", 4), ("lines-1000:1250", 5)):
        soak.keep(f"tests/a.py::test_a[{case}]", {"folders": number, "read": 2 * number}, 1.6, kept)
    soak.keep("tests/b.py::test_b", {"kills": 40}, 9.2, kept)
    body = soak.read(kept)
    assert soak.totals(body) == {"tests/a.py::test_a": {"folders": 9, "read": 18}, "tests/b.py::test_b": {"kills": 40}}
    assert list(body["tests/a.py::test_a"]) == ["lines-250:500", "lines-1000:1250"]
    assert body["tests/b.py::test_b"][""]["seconds"] == 9
    row = f"| 9 folders, 18 read | {body['tests/b.py::test_b']['']['date']} | `tests/a.py::test_a` |\n"
    assert row in soak.with_table(f"before\n{soak.BEGIN}old\n{soak.END}after\n", body)


def test_the_page_states_the_counts_of_the_tests() -> None:
    loops = harmless.LOOPS
    pairs = sum(len(harmless.probes_under_test(adapters=loop == harmless.ADAPTERS)) for loop in loops)
    of_names = sum(name.startswith("test_") for name in vars(names))
    earlier = sum(path.is_dir() for path in (ROOT / "tests/earlier/folders").iterdir())
    limits = query.__kwdefaults__
    page = re.sub(r"\s+", " ", (ROOT / "docs/guarantees.md").read_text())
    for sentence in (
        f"{len(packaged())} probes in {len(loops)} kinds of loops",
        f"{pairs} pairs",
        f"{len(trainers.TRAINERS)} trainers",
        f"{len(killed.CHECKS) * killed.KILLS} kills, {len(killed.CHECKS) * killed.MANY_KILLS} in `make soak`",
        f"{len(faults.CHECKS)} kinds, one seed each, {faults.SEEDS} in `make soak`",
        f"{sum(map(len, corrupted.LONG.values())):,} in `make soak`",
        f"{len(odd.ODD)} and {len(odd.BATCHES)} kinds, {odd.QUICK} combinations, {odd.LONG:,} in `make soak`",
        f"2 × {len(corrupted.SEEDS)} damages, each read in {len(corrupted.READ)} ways",
        f"{earlier} folders",
        f"{len(names.NAMES)} names, {of_names} tests each",
        f"{len(secrets.HOLDS_ONE)} forms, {len(secrets.KNOWN_TOKENS)} kinds of tokens",
        f"{len(packaged())} probes, {configurations.QUICK} configurations each, {configurations.LONG:,} in `make soak`",
        f"{len(refused.REFUSED)} cases, 3 ways in",
        f"after {limits['seconds']:g} seconds or {limits['memory_mb']:,} MB",
    ):
        assert sentence in page, sentence
