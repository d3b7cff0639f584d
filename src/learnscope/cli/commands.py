"""What the commands share: how one is declared."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any


def command(
    commands: Any, name: str, action: Any, summary: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """Declare a command; the parser to which its arguments are added."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=textwrap.fill(description, 90), epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(action=action)
    return parser
