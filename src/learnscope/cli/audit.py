"""`learnscope audit`"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learnscope.cli.commands import command
from learnscope.record import Finding

EXAMPLES = """examples:
  learnscope audit                                   a small GPT-2 made here, on a built-in text
  learnscope audit --model_path runs/gpt2            a Hugging Face folder, on the same text
  learnscope audit --model_path model.pt --config_path config.json --data_split 'validation[:100]'
  learnscope audit --model_path model.pt --data held_out.jsonl --parts performance bit_widths
  learnscope audit --model_path a.pt b.pt --output_dir compared        several models side by side
  learnscope audit --model_path model.pt --max_mb 3.5 --export packed.safetensors
  learnscope audit --solve analysis_results/sensitivity.json --max_mb 3   another budget: nothing is measured again"""
DESCRIPTION = (
    "Examines a finished model: loss, speed and memory; how few bits its layers need; how it stands up to attacks and "
    "noise. Writes a run folder with analysis_results.json, summary_report.md, insights.md and plots. Results are "
    "remembered by content in OUTPUT_DIR/cache: a second audit only does what is missing. No code from a model file is "
    "run."
)


def add(commands: Any) -> None:
    """Declare the command."""
    parser = command(
        commands, "audit", run, "examine a finished model: performance, bit widths, robustness", DESCRIPTION, EXAMPLES
    )
    add_arguments(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The documented four first."""
    parser.add_argument(
        "--model_path",
        metavar="PATH",
        nargs="+",
        default=[],
        help="a Hugging Face folder, .safetensors or .pt state dictionary (default: one made here)",
    )
    parser.add_argument(
        "--config_path",
        metavar="FILE",
        type=Path,
        help="configuration of a state dictionary (default: config.json beside it, or one inside it)",
    )
    parser.add_argument(
        "--output_dir",
        metavar="DIR",
        type=Path,
        default=Path("analysis_results"),
        help="where the report goes (default: analysis_results)",
    )
    parser.add_argument("--data_split", metavar="SPLIT", help="such as validation[:100] or test[10%%:20%%]")
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="SOURCE", help="a .txt or .jsonl file, a datasets folder, or a name on the hub")
    data.add_argument("--tokenizer", metavar="PATH", help="its folder or file, or 'bytes' (default: beside the model)")
    data.add_argument("--examples", metavar="N", type=_count, default=256, help="at most so many (default: 256)")
    data.add_argument("--batch_size", metavar="N", type=_count, default=8, help="(default: 8)")
    data.add_argument(
        "--length", metavar="N", type=_count, default=128, help="tokens of an example at most (default: 128)"
    )
    what = parser.add_argument_group("what is examined")
    what.add_argument(
        "--parts",
        nargs="+",
        choices=("performance", "bit_widths", "robustness"),
        default=["performance", "bit_widths", "robustness"],
        help="(default: all three)",
    )
    what.add_argument("--max_mb", metavar="X", type=_positive, help="budget of the mix of widths, in MB (10⁶ bytes)")
    what.add_argument("--max_kl", metavar="X", type=_positive, help="or the damage allowed: mean KL in nats a token")
    what.add_argument("--export", metavar="FILE", type=Path, help="write the recommended mix, packed (.safetensors)")
    what.add_argument(
        "--solve",
        metavar="FILE",
        type=Path,
        help="only find the mix for a budget, from an earlier sensitivity.json; no model is needed",
    )
    judged = parser.add_argument_group("deployment scenarios are judged against")
    judged.add_argument("--tokens_per_second", metavar="X", type=_positive, help="real-time (default: 1000)")
    judged.add_argument("--memory_mb", metavar="X", type=_positive, help="edge (default: 100)")
    judged.add_argument("--robustness_gap", metavar="X", type=_positive, help="resistance to attack (default: 0.1)")
    how = parser.add_argument_group("how")
    how.add_argument("--device", metavar="D", help="such as cpu or cuda (default: cpu)")
    how.add_argument("--threads", metavar="N", type=_count, help="of the processor (default: as torch has them)")
    how.add_argument("--no_cache", action="store_true", help="neither use nor keep remembered results")
    how.add_argument("--quiet", action="store_true", help="print the path of the report and nothing else")


def _positive(text: str) -> float:
    number = float(text)  # argparse says what it was given when this fails
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: a number above 0 is needed")
    return number


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 1 is needed")
    return int(text)


def run(args: argparse.Namespace) -> int:
    if args.solve is not None:
        return _solve(args)
    from learnscope.posttrain.command import AuditOptions, audited, named
    from learnscope.posttrain.errors import PosttrainError
    from learnscope.sources.quiet import quiet

    thresholds = {
        "tokens_per_second": args.tokens_per_second,
        "memory_bytes": None if args.memory_mb is None else args.memory_mb * 1e6,
        "robustness_gap": args.robustness_gap,
    }
    say = (lambda _: None) if args.quiet else print
    try:
        with quiet(say, about="audit"):
            options = AuditOptions(
                models=named(args.model_path),
                output_dir=args.output_dir,
                config_path=args.config_path,
                tokenizer=args.tokenizer,
                device=args.device,
                data=args.data,
                split=args.data_split,
                batch_size=args.batch_size,
                length=args.length,
                examples=args.examples,
                parts=args.parts,
                max_bytes=None if args.max_mb is None else int(args.max_mb * 1e6),
                max_kl=args.max_kl,
                export=args.export,
                thresholds={name: x for name, x in thresholds.items() if x is not None},
                threads=args.threads,
                cache=not args.no_cache,
                progress=not args.quiet,
            )
            runs = audited(options, say)
    except (PosttrainError, ValueError) as error:
        print(f"learnscope audit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = "what was measured is remembered, and the same command goes on from there"
        print(f"interrupted; {'nothing is remembered (--no_cache)' if args.no_cache else kept}", file=sys.stderr)
        return 130
    _print_findings({name: findings for name, (_, findings) in runs.items()}, args)
    return 0


def _print_findings(found: Mapping[str, Sequence[Finding]], args: argparse.Namespace) -> None:
    """Those of the reports."""
    from rich.console import Console

    from learnscope.report.terminal import print_findings

    if not args.quiet:
        console = Console(highlight=False)
        for name, findings in found.items():
            if len(found) > 1:
                console.print(f"\n{name}", markup=False)
            print_findings(findings, console)
    print(args.output_dir / ("comparison.md" if len(found) > 1 else "summary_report.md"))


def _solve(args: argparse.Namespace) -> int:
    """Another budget for what an earlier audit measured; neither a model nor torch is needed."""
    from learnscope.model.bits.sensitivities import SensitivityError, load
    from learnscope.tensor.bits.allocation import NoAllocation

    try:
        measured = load(args.solve)
        given = {"max_bytes": None if args.max_mb is None else int(args.max_mb * 1e6), "max_kl": args.max_kl}
        if sum(value is not None for value in given.values()) != 1:
            raise SensitivityError("give the budget: either --max_mb or --max_kl")
        found = measured.solve(**given)
    except (SensitivityError, NoAllocation) as error:
        print(f"learnscope audit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    width = max(map(len, measured.weights))
    for unit in measured.weights:
        bits = f"{found.choice[unit]} bits" if unit in found.choice else "as stored"
        print(f"{unit:{width}}  {bits}")
    print(
        f"{measured.bytes_of(found.choice) / 1e6:.3f} MB, damages of single units add up to {found.damage:.3g} "
        f"({measured.judged_by}); `learnscope audit --max_mb` also tries the mix on held-out data"
    )
    return 0


def main(argv: Sequence[str] | None = None, prog: str = "python analyze_model.py") -> int:
    """The same as a program of its own."""
    parser = argparse.ArgumentParser(prog=prog, description=DESCRIPTION)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
