"""`learnscope audit`"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learnscope.characters import visible
from learnscope.cli.commands import at_least_one, command, fail, whole_from_zero
from learnscope.cli.flags import in_flags

if TYPE_CHECKING:
    from learnscope.posttrain.command import AuditOptions

EXAMPLES = """examples:
  learnscope audit                                   a small GPT-2 made here, on a built-in text
  learnscope audit --model_path model.pt             a state dictionary, on sequences sampled from the model itself
  learnscope audit --model_path runs/gpt2 --data_split validation      a Hugging Face folder, on a built-in text
  learnscope audit --model_path model.pt --config_path config.json --data_split 'validation[:100]'
  learnscope audit --model_path model.pt --data held_out.jsonl --parts performance bit_widths
  learnscope audit a/ b/ c.pt --data held_out.jsonl --output_dir compared   which of them, and how to store it
  learnscope audit --model_path model.pt --max_mb 3.5 --export packed.safetensors
  learnscope audit --model_path runs/llama --data held_out.jsonl --export llama.gguf    for llama.cpp
  learnscope audit large/ --weights_only             what rounding does to each weight, in little memory
  learnscope audit --solve analysis_results/sensitivity.json --max_mb 3   another budget: nothing is measured again"""
DESCRIPTION = (
    "Examines a finished model: loss, speed and memory; how few bits its layers need; how it stands up to attacks and "
    "noise. Writes a run folder with analysis_results.json, summary_report.md, insights.md and plots. Results are "
    "remembered by content in OUTPUT_DIR/cache: a second audit only does what is missing. No code from a model file is "
    "run."
)


def add(commands: Any) -> None:
    summary = "examine a finished model: performance, bit widths, robustness"
    add_arguments(command(commands, "audit", run, summary, DESCRIPTION, EXAMPLES))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The documented four first."""
    models = "a Hugging Face folder, .safetensors or .pt state dictionary (default: one made here)"
    config = "configuration of a state dictionary (default: config.json beside it, or one inside it)"
    out = Path("analysis_results")
    parser.add_argument("models", metavar="MODEL", nargs="*", help=f"{models}; several are ranked on one frontier")
    parser.add_argument("--model_path", metavar="PATH", nargs="+", default=[], help="the same as a flag")
    parser.add_argument("--config_path", metavar="FILE", type=Path, help=config)
    parser.add_argument("--output_dir", metavar="DIR", type=Path, default=out, help=f"for the report (default: {out})")
    split = "such as validation[:100] or test[10%%:20%%]; without --data, of a built-in text"
    parser.add_argument("--data_split", metavar="SPLIT", help=split)
    data = parser.add_argument_group("data")
    source = "a .txt or .jsonl file, a datasets folder, or a name on the hub (default: sampled from the model itself)"
    data.add_argument("--data", metavar="SOURCE", help=source)
    data.add_argument("--tokenizer", metavar="PATH", help="its folder or file, or 'bytes' (default: beside the model)")
    data.add_argument("--text_column", metavar="NAME", help="the column of the texts (default: text)")
    data.add_argument("--label_column", metavar="NAME", help="of a classifier's answers (default: label or labels)")
    examples = "at most N (default: 256, fewer for a large model)"
    data.add_argument("--examples", metavar="N", type=at_least_one, help=examples)
    data.add_argument("--batch_size", metavar="N", type=at_least_one, default=8, help="(default: 8)")
    length = "tokens per example (default: 128, or 64 of the model's own samples)"
    data.add_argument("--length", metavar="N", type=at_least_one, help=length)
    seed = "of the sequences sampled from the model if no data are named (default: 0)"
    data.add_argument("--seed", metavar="N", type=whole_from_zero, default=0, help=seed)
    task = "questions with known answers, .jsonl with context, choices, answer or prompt, answer (may be repeated)"
    data.add_argument("--task", metavar="FILE", dest="tasks", action="append", default=[], help=task)
    what = parser.add_argument_group("what is examined")
    parts = ["performance", "bit_widths", "robustness"]
    what.add_argument("--parts", nargs="+", choices=parts, default=parts, help="(default: all three)")
    thorough = "leave nothing out for the sake of time (default: about two minutes for a GPT-2 of two layers)"
    what.add_argument("--thorough", action="store_true", help=thorough)
    what.add_argument("--quick", action="store_true", help="a fifth of that: fewer examples, tokens and attack steps")
    export = "write the recommended mix: a .gguf or .safetensors (packed) file, or a folder for transformers and vLLM"
    what.add_argument("--export", metavar="PATH", type=Path, help=export)
    formats = ["packed", "torchao", "compressed-tensors", "gguf"]
    what.add_argument("--export_format", choices=formats, help="(default: by the ending; a folder: compressed-tensors)")
    solve = "only find the mix for a budget, from an earlier sensitivity.json; no model is needed"
    what.add_argument("--solve", metavar="FILE", type=Path, help=solve)
    alone = "only what rounding does to each weight of .safetensors files, read piece by piece: the model is not run"
    what.add_argument("--weights_only", action="store_true", help=alone)
    _add_bits(parser.add_argument_group("bit widths (default: all of them are searched)"))
    judged = parser.add_argument_group("deployment scenarios are judged against")
    judged.add_argument("--tokens_per_second", metavar="X", type=_positive, help="real-time (default: 1000)")
    judged.add_argument("--memory_mb", metavar="X", type=_positive, help="edge (default: 100)")
    judged.add_argument("--robustness_gap", metavar="X", type=_positive, help="resistance to attack (default: 0.1)")
    device = parser.add_argument_group("a device that it is meant for, judged by the roofline: computed, not measured")
    device.add_argument("--device_memory_gb", metavar="X", type=_positive, help="its memory, in GB (10⁹ bytes)")
    device.add_argument("--device_bandwidth_gbs", metavar="X", type=_positive, help="of that memory, in GB a second")
    device.add_argument("--device_tflops", metavar="X", type=_positive, help="10¹² operations a second, for prefill")
    how = parser.add_argument_group("how")
    how.add_argument("--device", metavar="D", help="such as cpu or cuda (default: cpu)")
    how.add_argument("--threads", metavar="N", type=at_least_one, help="of the processor (default: torch's setting)")
    how.add_argument("--no_cache", action="store_true", help="neither read nor write cached results")
    how.add_argument("--full", action="store_true", help="print all findings, not only the verdict")
    how.add_argument("--quiet", action="store_true", help="print the path of the report and nothing else")


def _add_bits(bits: Any) -> None:
    """Budgets, and what the search over bit widths may use."""
    bits.add_argument("--max_mb", metavar="X", type=_positive, help="the best in at most so many MB (10⁶ bytes)")
    bits.add_argument("--max_kl", metavar="X", type=_positive, help="the smallest with a mean KL of so many nats")
    increase = "loss that is accepted, a share of the perplexity or of the answers (default: 0.01)"
    bits.add_argument("--max_increase", metavar="X", type=_positive, help=increase)
    widths = "widths that units may have, of 2 to 8 and 16 (default: all)"
    bits.add_argument("--bits", metavar="N", nargs="+", type=at_least_one, help=widths)
    outside = "whether embeddings and head are quantised too (default: yes)"
    bits.add_argument("--embeddings", action=argparse.BooleanOptionalAction, default=None, help=outside)
    ranges = "ranges around 0, without a zero point (default: at 4 bits and more; near the best width both are tried)"
    bits.add_argument("--symmetric", dest="symmetric", action="store_const", const=True, help=ranges)
    bits.add_argument("--asymmetric", dest="symmetric", action="store_const", const=False, help="with a zero point")
    grains = ["tensor", "channel", "group"]
    scales = "what has a scale of its own (default: channels; near the best width all are tried)"
    bits.add_argument("--granularity", choices=grains, help=scales)
    bits.add_argument("--group_size", metavar="N", type=at_least_one, help="inputs of a group (default: 128, 64, 32)")
    rounded = "round activations too, in all configurations (default: in two of them, to 8 bits)"
    bits.add_argument("--activation_bits", metavar="N", type=at_least_one, help=rounded)
    bits.add_argument("--method", metavar="NAME", help="how weights are rounded (default: rtn, to the nearest)")


def _positive(text: str) -> float:
    number = float(text)  # argparse says what it was given when this fails
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: a number above 0 is needed")
    return number


def run(args: argparse.Namespace) -> int:
    if args.solve is not None:
        return _solve(args)
    if args.weights_only:
        from learnscope.cli.weights_only import run as judge

        return judge(args)
    from rich.console import Console
    from rich.text import Text

    from learnscope.posttrain.analyzer import with_thresholds
    from learnscope.posttrain.command import audited, named
    from learnscope.posttrain.errors import PosttrainError
    from learnscope.report.audit.verdict import verdict
    from learnscope.report.terminal import print_findings, print_verdict
    from learnscope.sources.hushed import quiet

    def say(line: str) -> None:
        if not args.quiet:
            print(in_flags(line), flush=True)

    try:
        with quiet(say, about="audit"):
            runs = audited(_options(args, named([*args.models, *args.model_path])), say)
    except (PosttrainError, ValueError) as error:
        return fail("learnscope audit", ValueError(in_flags(str(error))))
    except KeyboardInterrupt:
        cached = "what was measured is cached, and the same command goes on from there"
        print(f"interrupted; {'nothing is cached (--no_cache)' if args.no_cache else cached}", file=sys.stderr)
        return 130
    console = Console(highlight=False)
    ranked = _print_ranking({name: run for name, (run, _) in runs.items()}, console) if not args.quiet else False
    for name, (run, findings) in runs.items() if not args.quiet and (args.full or not ranked) else ():
        console.print(Text(f"\n{visible(name)}", style="bold"))
        print_verdict(verdict(run.reader, with_thresholds(None, _thresholds(args))), console)
        if args.full:
            print_findings(findings, console, more="Shortened: the report has all of it.")
    print(args.output_dir / ("comparison.md" if len(runs) > 1 else "summary_report.md"))
    return 0


def _print_ranking(runs: Mapping[str, Any], console: Any) -> bool:
    """The verdict over several models; whether they were ranked, so that each one's own is left to its report."""
    from learnscope.comparison import compare
    from learnscope.comparison.ranking_words import ranking_verdict, rewind_lines
    from learnscope.report.terminal import print_verdict

    if len(runs) < 2:
        return False
    compared = compare(list(runs.values()), names=list(runs))
    if compared.ranking is None:
        return False
    console.print()
    lines = ranking_verdict(compared.ranking, compared.audits, rewind_lines(compared.opened))
    print_verdict([(label, in_flags(said)) for label, said in lines], console)
    return bool(compared.ranking.points)


def _options(args: argparse.Namespace, models: Mapping[str, Any]) -> AuditOptions:
    from learnscope.posttrain.command import AuditOptions

    own = {field.name for field in fields(AuditOptions)}
    return AuditOptions(
        models=models,
        split=args.data_split,
        max_bytes=_bytes(args),
        thresholds=_thresholds(args),
        target_device=_target_device(args),
        cache=not args.no_cache,
        progress=not args.quiet,
        **{name: value for name, value in vars(args).items() if name in own and name != "models"},
    )


def _thresholds(args: argparse.Namespace) -> dict[str, float]:
    thresholds = {
        "tokens_per_second": args.tokens_per_second,
        "memory_bytes": None if args.memory_mb is None else args.memory_mb * 1e6,
        "robustness_gap": args.robustness_gap,
    }
    return {name: x for name, x in thresholds.items() if x is not None}


def _target_device(args: argparse.Namespace) -> dict[str, float]:
    given = {
        "memory_bytes": (args.device_memory_gb, 1e9), "bytes_per_second": (args.device_bandwidth_gbs, 1e9),
        "flops_per_second": (args.device_tflops, 1e12),
    }  # fmt: skip
    return {name: unit * x for name, (x, unit) in given.items() if x is not None}


def _bytes(args: argparse.Namespace) -> int | None:
    return None if args.max_mb is None else int(args.max_mb * 1e6)


def _solve(args: argparse.Namespace) -> int:
    """Another budget for what an earlier audit measured; neither a model nor torch is needed."""
    from learnscope.model.bits.sensitivities import SensitivityError, load
    from learnscope.tensor.bits.allocation import NoAllocation

    try:
        measured = load(args.solve)
        if (args.max_mb is None) == (args.max_kl is None):
            raise SensitivityError("give the budget: either --max_mb or --max_kl")
        mix = measured.solve(max_bytes=_bytes(args), max_kl=args.max_kl)
    except (SensitivityError, NoAllocation) as error:
        return fail("learnscope audit", ValueError(in_flags(str(error))))
    width = max(map(len, measured.weights))
    for unit in measured.weights:
        print(f"{visible(unit):{width}}  {f'{mix.choice[unit]} bits' if unit in mix.choice else 'as stored'}")
    print(
        f"{measured.bytes_of(mix.choice) / 1e6:.3f} MB, damages of single units add up to {mix.damage:.3g} "
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
