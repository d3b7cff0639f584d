"""Memory of the host that is used again by passes that are made many times."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest
import torch

from learnscope.tensor.host import LARGEST_KEPT, keep_freed_memory

FAULTS = """
import resource, sys, torch
from learnscope.tensor.host import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
def passes(count):
    for _ in range(count):
        kept = [torch.ones(1 << 19) for _ in range(8)]  # 16 MiB in blocks of 2, as a small model's activations
passes(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
passes(20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    printed = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(printed.stdout.split()[-1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc adapts to the blocks that it has seen freed")
def test_pages_are_not_asked_for_again() -> None:
    pages = 20 * (16 << 20) // resource.getpagesize()
    assert faults("given back") > pages // 20, "without it, some pages of each pass are asked for anew"
    assert faults("kept") < pages // 200


def test_it_takes_no_memory_itself() -> None:
    keep_freed_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    keep_freed_memory()
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert pages * resource.getpagesize() < LARGEST_KEPT // 4
    assert torch.ones(3).sum() == 3
