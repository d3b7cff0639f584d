"""`learnscope train`, whose options have a parser of their own, for files and sections."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from learnscope.cli.commands import fail


def add(commands: Any) -> None:
    """List the command; `main` takes its arguments before they are parsed here."""
    commands.add_parser("train", help="train an adapter (PEFT) by SFT or GRPO, tracked on request", add_help=False)


def main(argv: Sequence[str] | None = None, prog: str = "learnscope train") -> int:
    """Run it; returns the exit status: 0 if it worked, 2 if it could not be done as asked, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    from learnscope.training.errors import TrainError
    from learnscope.training.settings.help import help_text

    if any(argument in ("-h", "--help") for argument in arguments):
        print(help_text(prog))
        return 0
    from learnscope.training.settings.parser import as_yaml, parse

    try:
        config = parse([argument for argument in arguments if argument != "--print_config"])
        if "--print_config" in arguments:
            print(as_yaml(config), end="")
            return 0
        # imported here: nothing above waits for torch
        from learnscope.training.command import train

        train(config)
    except TrainError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        return fail(prog, error)
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    return 0
