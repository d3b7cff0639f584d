"""The whole suite as on other processors, with one and with four threads, each time in another random order.

    python tests/elsewhere.py                 all six runs
    python tests/elsewhere.py "SSE4.1" 4 3    one of them: the processor, the threads, the seed of the order

torch, oneDNN and MKL are told to use an older instruction set. Each run has a cache of compiled code of its own: from
a shared one it would take code for another instruction set. With SSE4.1 torch's compiler does not work, and the tests
that need it are skipped by name. What passed and was skipped is kept in docs/soak.json, as counts of long tests are.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import soak

ROOT = Path(__file__).parents[1]
PROCESSORS = {
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "SSE4.1": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
RUNS = [("AVX2", 1, 1), ("SSE4.1", 1, 2), ("AVX2", 4, 3), ("SSE4.1", 4, 4), ("AVX2", 1, 5), ("SSE4.1", 1, 6)]


def run(processor: str, threads: int, seed: int) -> bool:
    """Whether all tests passed. What a failing run printed is shown, and nothing of it is kept."""
    began = time.monotonic()
    count = str(threads)
    with tempfile.TemporaryDirectory() as cache:
        env = {
            **os.environ,
            **PROCESSORS[processor],
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "OPENBLAS_NUM_THREADS": count,
            "OMP_WAIT_POLICY": "passive",  # more threads than cores would wait for each other by spinning
        }
        command = [sys.executable, "-m", "pytest", "-n", "2", "-m", "not soak", "--shuffle", str(seed), "-rfE"]
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    closing = next((line for line in reversed(done.stdout.splitlines()) if " passed" in line), "nothing passed")
    print(f"{processor}, {threads} threads, order {seed}: {closing}", flush=True)
    if done.returncode:
        print(done.stdout, flush=True)
        return False
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped)", closing)}
    case = f"{processor}, threads: {threads}, order: {seed}"
    soak.keep(f"tests/elsewhere.py[{case}]", {"runs": 1, **counts}, time.monotonic() - began)
    soak.write_page()  # the next run holds the page against the counts
    return True


if __name__ == "__main__":
    asked = [(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))] if len(sys.argv) > 1 else RUNS
    passed = [run(*each) for each in asked]  # all of them, also after one that failed
    sys.exit(0 if all(passed) else 1)
