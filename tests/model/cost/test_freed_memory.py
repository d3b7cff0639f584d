"""Memory that is freed stays with the process, for a while."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys

import pytest

from learnscope.model.collector import no_full_collection

PROGRAM = """
import resource
from pathlib import Path
import torch
from learnscope.model.cost.freed_memory import freed_memory_kept

def passes():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(2**24)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

passes()
usual = passes()
with freed_memory_kept():
    with freed_memory_kept():
        passes()
    kept, held = passes(), resident()  # a block within another hands nothing back
print(usual, kept, held, resident())
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="without glibc")
def test_pages_are_taken_once_and_handed_back_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    usual, kept, held, afterwards = map(int, done.stdout.split())
    assert kept < usual / 4
    assert afterwards < held - 2**25


def test_the_collector_leaves_what_is_old_alone_meanwhile() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), no_full_collection():
        full = gc.get_stats()[2]["collections"]
        for _ in range(30_000):
            [[] for _ in range(10)]
            kept = [[]]  # tracked, so that young collections come
        assert kept == [[]]
        assert gc.get_stats()[2]["collections"] == full
        raise KeyError
    assert gc.get_threshold() == before
