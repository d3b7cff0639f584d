"""How long the built-in tracked training takes from nothing to its files, by SFT and by GRPO, and resumed half way.

    python bench/training.py [--quick]

`learnscope train` as a user starts it: a process of its own that makes the model and the data, trains 200 steps with
both trackers every 10, and writes everything, figures included. Then again from the checkpoint in the middle. Seconds
by the clock. Exits with 1 if a stated bound is missed, or a documented file is.
"""

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.figures import report, save

from learnscope.cli import main as learnscope
from learnscope.training import builtin

BOUNDS = dict.fromkeys(("sft, s", "sft resumed half way, s", "grpo, s", "grpo resumed half way, s"), 120.0)
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
        "train", "--enable_tracking", "--tracking_frequency", str(steps // 20),
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="few steps, in this process: does it run, not how long it takes"
    )
    quick = parser.parse_args().quick
    steps, figures = 20 if quick else 200, {}
    with tempfile.TemporaryDirectory() as name:
        more: tuple[str, ...] = ()
        if quick:  # making the model takes longer than such a training
            builtin.STEPS = 3
            builtin.make_base_model(Path(name) / "base")
            more = ("--config.model.model_name_or_path", str(Path(name) / "base"))
        for method in ("sft",) if quick else ("sft", "grpo"):
            output = Path(name) / method
            figures[f"{method}, s"] = seconds_of(output, method, steps, *more, here=quick)
            half = ("--config.training.resume_from_checkpoint", str(output / f"checkpoint-{steps // 2}"))
            figures[f"{method} resumed half way, s"] = seconds_of(output, method, steps, *half, *more, here=quick)
    held = report(figures, BOUNDS)
    if quick:
        return 0
    save("training", figures, BOUNDS)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
