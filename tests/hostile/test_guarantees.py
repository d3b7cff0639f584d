"""The numbers that docs/guarantees.md states are those of the tests."""

from __future__ import annotations

import re
from pathlib import Path

from contract import test_harmless as harmless
from contract.probes import packaged
from hostile import test_configurations as configurations
from hostile import test_corrupted as corrupted
from hostile import test_names as names
from hostile import test_odd_tensors as odd
from hostile import test_refused_on_opening as refused
from hostile import test_secrets as secrets
from learnscope.store.query import query

ROOT = Path(__file__).parents[2]


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
