"""What the commands share: how one is declared, and how it fails."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from typing import Any

from learnscope.characters import visible


def command(
    commands: Any, name: str, action: Any, summary: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """Declare a command; returns the parser for its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=textwrap.fill(description, 90), epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(action=action)
    return parser


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, not {text}")
    return int(text)


def whole_from_zero(text: str) -> int:
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"a whole number of at least 0 is needed, not {text}")
    return int(text)


def from_zero(text: str) -> float:
    """An argument that is a number from 0 on."""
    if not 0 <= float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"a number of at least 0 is needed, not {text}")
    return float(text)


def fail(prog: str, error: Exception) -> int:
    """Print the error on one line; returns the exit status."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print(f"{prog}: {' '.join(visible(message).split())}", file=sys.stderr)
    return 2
