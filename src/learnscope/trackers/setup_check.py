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
class CheckResult:
    """How a check ended, and what to do if it failed."""

    name: str
    ok: bool
    message: str
    cure: str = ""
    seconds: float = 0.0


def print_checks(checks: Sequence[CheckResult], title: str) -> int:
    """Print a line for each check; returns the exit status."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("check", "result", "found"):
        table.add_column(column)
    for check in checks:
        mark = Text("ok", style="green") if check.ok else Text("failed", style="bold red")
        # Text, not markup: a message in square brackets is a message
        table.add_row(check.name, mark, Text(f"{check.message}{f' → {check.cure}' if check.cure else ''}"))
    Console().print(table)
    return 0 if all(check.ok for check in checks) else 1


def check_package(name: str) -> CheckResult:
    """Whether it is installed, new enough, and can be imported."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        return CheckResult(name, False, "not installed", INSTALL)
    requirements = [Requirement(line) for line in requires("learnscope") or []]
    needed = next((r.specifier for r in requirements if r.name == name and r.specifier), None)
    if needed is not None and not needed.contains(installed, prereleases=True):
        return CheckResult(name, False, f"{installed}, where {needed} is needed", f"{INSTALL} --upgrade")
    try:
        import_module(name)
    except Exception as error:  # noqa: BLE001  (a broken installation fails in its own way)
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return CheckResult(name, False, f"{installed} cannot be imported: {reason}", f"reinstall {name}")
    return CheckResult(name, True, installed)


def check_device() -> CheckResult:
    """What torch computes on here; a CPU will do."""
    import torch  # not at the top: printing the help need not wait for it

    if not torch.accelerator.is_available():
        return CheckResult(
            "device", True, f"cpu, {torch.get_num_threads()} threads: no accelerator, which is slow, not wrong"
        )
    device = torch.accelerator.current_accelerator()
    assert device is not None
    try:
        torch.ones(2, device=device).sum().item()
    except RuntimeError as error:
        return CheckResult(
            "device", False, f"{device} does not compute: {str(error).splitlines()[0]}", "check its driver"
        )
    return CheckResult("device", True, f"{device}, {torch.accelerator.device_count()} of them")


def check_folder(folder: Path) -> CheckResult:
    """Whether files can be written to it, or to its nearest existing parent; nothing is left behind."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"0" * 4096)
    except OSError as error:
        cure = "name a folder that can be written to: --output_dir DIR"
        return CheckResult("output directory", False, f"{existing}: {error.strerror or error}", cure)
    return CheckResult("output directory", True, f"{folder} can be written to")


def check_setup(output_dir: Path) -> list[CheckResult]:
    """All checks, in an order in which the first failure explains those after it.

    The last is a small LoRA model trained under both trackers, saved, loaded and compared; nothing is downloaded.
    """
    packages = [check_package(name) for name in PACKAGES]
    checks = [*packages, check_device(), check_folder(output_dir)]
    if not all(check.ok for check in packages):
        return [*checks, CheckResult("tracked training", False, "not tried: a package is missing", INSTALL)]
    from learnscope.trackers.check import check_family

    with tempfile.TemporaryDirectory() as folder:
        lora = check_family("lora", Path(folder))
    cure = "" if lora.ok else "run python -m learnscope.trackers.check, which checks every family"
    return [*checks, CheckResult("tracked training", lora.ok, lora.message, cure)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print a table, and give the exit status: 0 if all is well."""
    parser = argparse.ArgumentParser(
        description="Checks that a training with trackers can run here: packages and their versions, the device, the "
        "output directory, and a small tracked training on the CPU. Nothing is downloaded.",
    )
    parser.add_argument("--output_dir", metavar="DIR", default="output", help="where files will go (%(default)s)")
    options = parser.parse_args(arguments)
    return print_checks(check_setup(Path(options.output_dir)), "Setup for training with trackers")
