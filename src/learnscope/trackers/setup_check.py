"""Whether a training with trackers can run here: packages, device, a place for files, and a small tracked training."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

PACKAGES = (
    "torch", "numpy", "matplotlib", "rich", "transformers", "peft", "trl", "accelerate", "datasets", "jsonargparse",
)  # fmt: skip
INSTALL = "pip install 'learnscope[hf]'"


@dataclass(frozen=True)
class Checked:
    """How one check ended: what was found, and where it failed what to do."""

    name: str
    ok: bool
    told: str
    cure: str = ""
    seconds: float = 0.0


def print_checks(checks: Sequence[Checked], title: str, console: Console | None = None) -> int:
    """A line a check; the exit status."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("check", "result", "found"):
        table.add_column(column)
    for one in checks:
        mark = Text("ok", style="green") if one.ok else Text("failed", style="bold red")
        # Text, not markup: a message in square brackets is a message
        table.add_row(one.name, mark, Text(f"{one.told}{f' → {one.cure}' if one.cure else ''}"))
    (console or Console()).print(table)
    return 0 if all(one.ok for one in checks) else 1


def check_package(name: str) -> Checked:
    """Whether it is installed, new enough, and can be imported."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return Checked(name, False, "not installed", INSTALL)
    wanted = _wanted(name)
    if wanted is not None and not wanted.specifier.contains(found, prereleases=True):
        return Checked(name, False, f"{found}, where {wanted.specifier} is needed", f"{INSTALL} --upgrade")
    try:
        import_module(name)
    except Exception as error:  # noqa: BLE001  (a broken installation fails in its own way)
        reason = (str(error).splitlines() or [""])[0]
        return Checked(
            name, False, f"{found} cannot be imported: {type(error).__name__}: {reason}", f"reinstall {name}"
        )
    return Checked(name, True, found)


def _wanted(name: str) -> Requirement | None:
    for line in requires("learnscope") or []:
        requirement = Requirement(line)
        if requirement.name == name and requirement.specifier:
            return requirement
    return None


def check_device() -> Checked:
    """What torch computes on here; a CPU will do."""
    import torch  # here, as below: what only prints its help need not wait for it

    if not torch.accelerator.is_available():
        return Checked(
            "device", True, f"cpu, {torch.get_num_threads()} threads: no accelerator, which is slow, not wrong"
        )
    device = torch.accelerator.current_accelerator()
    assert device is not None
    try:
        torch.ones(2, device=device).sum().item()
    except RuntimeError as error:
        return Checked("device", False, f"{device} does not compute: {str(error).splitlines()[0]}", "check its driver")
    return Checked("device", True, f"{device}, {torch.accelerator.device_count()} of them")


def check_folder(folder: Path) -> Checked:
    """Whether files can be written into it, or into where it would be made; nothing is left behind."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0" * 4096)
    except OSError as error:
        cure = "name a folder that can be written to: --output_dir DIR"
        return Checked("output directory", False, f"{there}: {error.strerror or error}", cure)
    return Checked("output directory", True, f"{folder} can be written to")


def check_tracking() -> Checked:
    """A small LoRA model trained under both trackers, saved, loaded and compared; nothing is downloaded."""
    from learnscope.trackers.check import check_family

    with tempfile.TemporaryDirectory() as folder:
        found = check_family("lora", Path(folder))
    cure = "" if found.ok else "run python -m learnscope.trackers.check, which tells it for every family"
    return Checked("tracked training", found.ok, found.told, cure)


def check_setup(output_dir: Path) -> list[Checked]:
    """All of it, in an order in which the first failure explains those after it."""
    packages = [check_package(name) for name in PACKAGES]
    rest = [check_device(), check_folder(output_dir)]
    if all(one.ok for one in packages):
        rest.append(check_tracking())
    else:
        rest.append(Checked("tracked training", False, "not tried: a package is missing", INSTALL))
    return [*packages, *rest]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print a table, and give the exit status: 0 if all is well."""
    parser = argparse.ArgumentParser(
        description="Checks that a training with trackers can run here: packages and their versions, the device, the "
        "output directory, and a small tracked training on the CPU. Nothing is downloaded.",
    )
    parser.add_argument("--output_dir", metavar="DIR", default="output", help="where files will go (%(default)s)")
    given = parser.parse_args(arguments)
    return print_checks(check_setup(Path(given.output_dir)), "Setup for training with trackers")
