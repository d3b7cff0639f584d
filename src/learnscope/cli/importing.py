"""`learnscope import`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learnscope.characters import visible
from learnscope.cli.commands import command
from learnscope.progress import progress_bar

if TYPE_CHECKING:
    from learnscope.importing.foreign import Foreign
    from learnscope.importing.mapping import Entry

RUNS = Path("runs")


def add(commands: Any) -> None:
    parser = command(
        commands, "import", run, "runs that TensorBoard, wandb, a Trainer or a CSV file recorded",
        "Makes a run folder of a training that another tool recorded, so that report, checks, compare and query work "
        "on it. Reads TensorBoard's event files, wandb's run-*.wandb (offline folders too), trainer_state.json of the "
        "Hugging Face Trainer, and CSV, such as Lightning's metrics.csv. Names that are known, such as train/loss, "
        "eval_loss or lr-AdamW, become the quantities that findings judge; all others keep their names. A table says "
        "what became what, and run.json keeps it. A folder that holds many trainings is imported as many runs. Nothing "
        "is ever overwritten: a name that is taken gets -2, -3, … Needs no torch.",
        "examples:\n"
        "  learnscope import lightning_logs/version_3\n"
        "  learnscope import wandb/offline-run-20260101_120000-ab12cd34 --out runs/baseline\n"
        "  learnscope import results/checkpoint-500/trainer_state.json\n"
        "  learnscope import log.csv --step iteration --map xent=Loss.loss --map 'dev xent=Holdout.holdout_loss'\n"
        "  learnscope import wandb --out runs/old           all runs of a folder, as runs/old/…\n\n"
        "what a name can be mapped to:\n"
        "  Loss.loss, Loss.accuracy, Holdout.holdout_loss, Holdout.holdout_accuracy, LearningRate.learning_rate,\n"
        "  GradientFlow.norm, or any other number of a whole model that `learnscope probes` lists; own: its own name;\n"
        "  nothing: leave it out; epoch: the epoch of the records",
    )  # fmt: skip
    parser.add_argument("source", metavar="SOURCE", help="a file, the folder of a training, or a folder of many")
    parser.add_argument(
        "--out", metavar="RUN", type=Path,
        help="the run folder to write; of several trainings, the folder of their run folders (default: runs/NAME)",
    )  # fmt: skip
    parser.add_argument(
        "--format", metavar="FORMAT", default="auto",
        help="what SOURCE is: tensorboard, wandb, trainer or csv (default: auto, seen from its files)",
    )  # fmt: skip
    parser.add_argument(
        "--map", metavar="NAME=QUANTITY", action="append", default=[], type=_pair,
        help="what a name means, where that is not seen from it or seen wrongly; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--step", metavar="NAME",
        help="the column, or the name in wandb, that counts steps; 'order' numbers values as they were written",
    )  # fmt: skip
    parser.add_argument(
        "--leave-out", metavar="NAME", action="append", default=[], help="do not read this name; may be repeated"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the folders that were written")


def _pair(text: str) -> tuple[str, str]:
    name, equals, quantity = text.rpartition("=")
    if not equals or not name or not quantity:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=QUANTITY, such as xent=Loss.loss")
    return name, quantity


def run(args: argparse.Namespace) -> int:
    from learnscope.importing import Options
    from learnscope.importing.places import find_places

    places = find_places(Path(args.source), args.format)
    options = Options(dict(args.map), args.step, tuple(args.leave_out))
    problems: dict[str, str] = {}
    with progress_bar("reading") as progress:
        sources = options.read_all(places, problems, progress)
    for source in sources:
        entries = options.entries(source)
        out = _place(args.out, source.name, single=len(places) == 1)
        with progress_bar(f"writing {visible(str(out))}") as progress:
            made = options.write(source, out, progress)
        assert made.path is not None
        written = _shown(made.path)
        if args.quiet:
            print(visible(written))
            continue
        _tell(source, entries, written, renamed=made.path.name != out.name)
    if len(sources) == 1 and not args.quiet:
        print(f"see it: learnscope report {visible(written)}")
    for name, problem in problems.items():
        print(f"learnscope import: {visible(name)} was not imported: {visible(problem)}", file=sys.stderr)
    return 2 if problems else 0


def _place(out: Path | None, name: str, *, single: bool) -> Path:
    if out is None:
        return RUNS / name
    return out if single else out / name


def _shown(path: Path) -> str:
    """Relative to where the command was given, if it lies there."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _tell(source: Foreign, entries: Sequence[Entry], written: str, *, renamed: bool) -> None:
    """What became what, where the steps come from, what was left out or could not be read."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "became", box=None, header_style="bold", pad_edge=False)
    table.add_column("values", justify="right")
    table.add_column("note")
    for entry in entries:
        cells = (entry.name, entry.became, f"{entry.values:,}", entry.note)
        table.add_row(*(Text(visible(cell)) for cell in cells))  # Text: square brackets are no markup
    for name, what in source.left_out.items():
        table.add_row(*(Text(visible(cell)) for cell in (name, "left out", "", what)))
    where = str(source.files[0]) if len(source.files) == 1 else f"{len(source.files)} files of {source.files[0].parent}"
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1_000_000)
    print(visible(f"{where} ({source.format}, steps: {source.step})"))
    console.print(table)
    if len(source.starts) > 1:
        again = ", ".join(f"{start + 1:,}" for start in source.starts[1:])
        print(
            f"steps were taken again from {again} on: what came before is kept as superseded, the last attempt counts"
        )
    for line in (*source.notes, *source.problems):
        print(visible(line))
    print(visible(f"written: {written}{' (the name was taken)' if renamed else ''}"))
