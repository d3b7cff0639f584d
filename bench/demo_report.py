"""How long `learnscope report` takes for the largest run of the demo, in a fresh process, page included.

    python bench/demo_report.py [--quick] [--runs 5]

Seconds by the clock from starting Python to its end, imports included, as a user waits for them; the first report of a
run and later ones. The program says at its end which large packages it has imported: torch is none of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.claims import Claim, keep, show

PROGRAM = """
import sys
from learnscope.cli import main
status = main(["report", sys.argv[1], "--out", sys.argv[2]])
print("torch" in sys.modules, file=sys.stderr)
sys.exit(status)
"""


def report(run: Path, out: Path) -> tuple[float, bool]:
    """Seconds, and whether torch was imported."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run), str(out)], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if not (out / "report.html").is_file():
        raise RuntimeError(f"no page was written: {done.stderr}")
    return seconds, done.stderr.split()[-1] == "True"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short training, one run")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    from learnscope.demo.grokking import train_grokking

    with tempfile.TemporaryDirectory() as room:
        run = Path(room) / "grokking"
        train_grokking(run, options.quick, lambda *_: None)
        report(run, Path(room) / "first")  # writes what Python compiles
        found = [report(run, Path(room) / str(number)) for number in range(1 if options.quick else options.runs)]
    claims = [
        Claim("report of the demo's largest run, page and imports included", [seconds for seconds, _ in found],
              bound=2.0, unit="s"),
        Claim("report of the demo's largest run: processes that import torch", [float(torch) for _, torch in found],
              bound=0.0, unit="processes"),
    ]  # fmt: skip
    held = show(claims)
    if options.quick:
        return 0
    keep("demo_report", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
