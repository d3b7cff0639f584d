"""How long the built-in tracked training takes from nothing to its files, by SFT and by GRPO, and resumed half way.

    python bench/training.py [--quick] [--runs 5]

`learnscope train` as a user starts it: a process of its own that makes the model and the data, trains 20 steps with
both trackers every 10, and writes everything, figures included. Then again from the checkpoint in the middle. Seconds
by the clock, on all cores. Exits with 1 if a stated bound is missed, or a documented file is.
"""

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from tools.claims import Claim, keep, show

from learnscope.cli import main as learnscope
from learnscope.training import builtin

STEPS, BOUND = 20, 20.0  # ten seconds to start and half a second a step: 200 steps would take less than two minutes
DOCUMENTED = (
    "spectral_logs/spectral_history.pt", "spectral_logs/spectral_history_summary.json",
    "gradient_logs/gradient_flow.pt", "gradient_logs/gradient_flow_summary.json",
    "gradient_logs/gradient_heatmap_A.png", "gradient_logs/gradient_heatmap_B.png",
    "gradient_logs/gradient_layer_comparison.png", "spectral_history_final.pt",
    "gradient_flow_final.pt",
)  # fmt: skip


def seconds_of(output: Path, method: str, steps: int, *more: str, here: bool) -> float:
    """One training; its documented files must be there afterwards, and newer than its start."""
    command = [
        "train", "--enable_tracking", "--tracking_frequency", str(min(10, steps // 4)),
        "--config.training.method", method, "--config.training.output_dir", str(output),
        "--config.training.max_steps", str(steps), *more,
    ]  # fmt: skip
    began, started = time.time(), time.perf_counter()
    if here:
        with contextlib.redirect_stdout(io.StringIO()):
            assert learnscope(command) == 0
    else:
        subprocess.run([sys.executable, "-m", "learnscope.cli", *command], check=True, capture_output=True)
    seconds = time.perf_counter() - started
    stale = [name for name in DOCUMENTED if not (output / name).is_file() or (output / name).stat().st_mtime < began]
    if stale:
        raise SystemExit(f"{method}: not written: {', '.join(stale)}")
    return seconds


def measure(runs: int, quick: bool) -> dict[str, list[float]]:
    steps = 8 if quick else STEPS
    seconds: dict[str, list[float]] = {}
    for run in range(runs):
        with tempfile.TemporaryDirectory() as name:
            more: tuple[str, ...] = ()
            if quick:  # making the model takes longer than such a training
                builtin.STEPS = 3
                builtin.make_base_model(Path(name) / "base")
                more = ("--config.model.model_name_or_path", str(Path(name) / "base"))
            methods = ("sft",) if quick else ("sft", "grpo")
            for method in methods if run % 2 else methods[::-1]:
                output = Path(name) / method
                half = ("--config.training.resume_from_checkpoint", str(output / f"checkpoint-{steps // 2}"))
                for title, options in ((method, ()), (f"{method} resumed half way", half)):
                    took = seconds_of(output, method, steps, *options, *more, here=quick)
                    seconds.setdefault(f"{title}, {steps} steps", []).append(took)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="few steps, in this process: does it run, not how long it takes"
    )
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    seconds = measure(1 if options.quick else options.runs, options.quick)
    threads = torch.get_num_threads()
    claims = [Claim(name, runs, BOUND, unit="s", threads=threads) for name, runs in seconds.items()]
    held = show(claims)
    if options.quick:
        return 0
    keep("training", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
