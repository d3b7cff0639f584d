"""`learnscope patch`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learnscope.characters import visible
from learnscope.cli.commands import command
from learnscope.progress import progress_bar

if TYPE_CHECKING:
    from learnscope.model.updates.patch_info import PatchInfo


def add(commands: Any) -> None:
    patch = command(
        commands, "patch", run, "the sparse update between two checkpoints, or apply one",
        "Writes what turns checkpoint OLD into NEW, bit for bit, as a safetensors file, and says how small it is. "
        "With --apply, turns BASE, a checkpoint equal to OLD, into what NEW was. Checkpoints are .safetensors files "
        "or torch files with a state dictionary; no code of theirs is run.",
        "examples:\n  learnscope patch step100.safetensors step110.safetensors -o update.safetensors\n"
        "  learnscope patch --apply update.safetensors step100.safetensors -o step110.safetensors",
    )  # fmt: skip
    patch.usage = "learnscope patch OLD NEW [-o PATCH]\n       learnscope patch --apply PATCH BASE -o OUT"
    patch.add_argument("old", metavar="OLD", help="the checkpoint to start from (with --apply: BASE)")
    patch.add_argument("new", metavar="NEW", nargs="?", help="the checkpoint to arrive at")
    patch.add_argument("--apply", metavar="PATCH", help="apply this patch to BASE instead of making one")
    patch.add_argument("-o", "--out", metavar="FILE", help="what to write (default: OLD-NEW.safetensors)")
    patch.add_argument(
        "--no-verify", action="store_true",
        help="do not hash the checkpoints: faster, but a wrong base goes unnoticed",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from learnscope.model.updates.patch import export_patch
    from learnscope.model.updates.patch_apply import apply_patch
    from learnscope.model.weights.checkpoint import CheckpointError
    from learnscope.store.backend import RunError

    try:
        if args.apply is not None:
            if args.new is not None or args.out is None:
                raise RunError("to apply a patch: learnscope patch --apply PATCH BASE -o OUT")
            with progress_bar("applying") as progress:
                written = apply_patch(args.old, args.apply, args.out, verify=not args.no_verify, progress=progress)
            print(f"written: {written}")
            return 0
        if args.new is None:
            raise RunError("to make a patch: learnscope patch OLD NEW -o PATCH")
        out = args.out or f"{Path(args.old).stem}-{Path(args.new).stem}.safetensors"
        with progress_bar("comparing tensors") as progress:
            info = export_patch(args.old, args.new, out, verify=not args.no_verify, progress=progress)
    except CheckpointError as error:  # caught here, since its module needs torch
        raise RunError(str(error)) from error
    _print_patch(info)
    return 0


def _print_patch(info: PatchInfo, rows: int = 8) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from learnscope.model.updates.patch_info import share, size

    changed = sorted(
        (change for change in info.table if change.how != "same"),
        key=lambda change: (change.changed_share or 0.0, change.bytes), reverse=True,
    )  # fmt: skip
    table = Table("tensor", "how", box=None, header_style="bold", pad_edge=False)
    for title in ("entries", "changed", "bytes"):
        table.add_column(title, justify="right")
    for change in changed[:rows]:
        # Text: a name in square brackets must not be read as markup
        numbers = f"{change.entries:,}", share(change.changed_share), size(change.bytes)
        table.add_row(Text(visible(change.name)), change.how, *numbers)
    if changed:
        Console(highlight=False).print(table)
    if len(changed) > rows:
        print(f"and {len(changed) - rows} more")
    print(visible(str(info)))
