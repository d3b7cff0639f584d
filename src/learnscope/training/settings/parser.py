"""The command line of `learnscope train`: flags, dotted options and a file become a `Config`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml

from learnscope.trackers.config import TrackerConfig
from learnscope.training.errors import TrainError
from learnscope.training.settings.config import Config
from learnscope.training.settings.keys import check_flags, file_keys
from learnscope.training.settings.options import FLAGS, options, sections

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def parse(arguments: Sequence[str]) -> Config:
    """The configuration that a command line describes; a wrong option is refused with a suggestion.

    Options on the command line override the file, wherever `--config FILE` stands. The short flags for tracking
    override it too, except the frequency, which only sets what is not set elsewhere.
    """
    files, rest = _take_files(list(arguments))
    in_files = {key for path in files for key in file_keys(path)}
    on_line = check_flags(rest)
    ordered = [part for path in files for part in ("--config", path)] + _with_lists(rest)
    try:
        parsed = _parser().parse_args(ordered)
    except argparse.ArgumentError as error:
        raise TrainError(_in_words(str(error))) from None
    config = Config(**{name: _section(name, cls, getattr(parsed.config, name)) for name, cls in sections().items()})
    _apply_flags(config, parsed, in_files, on_line)
    return config


def as_yaml(config: Config) -> str:
    """The configuration as `--config FILE` takes it."""
    return str(yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True))


def _parser() -> ArgumentParser:
    try:
        from jsonargparse import ArgumentParser
    except ImportError:
        raise TrainError("training needs jsonargparse, trl and peft: pip install 'learnscope[hf]'") from None
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    for flag in FLAGS:
        if flag.value is None:
            parser.add_argument(f"--{flag.name}", action="store_true")
        else:
            parser.add_argument(f"--{flag.name}", type=int if flag.value == "N" else str, default=None)
    parser.add_argument("--config", type=Config)
    return parser


def _section(name: str, cls: type[Any], body: Any) -> Any:
    try:
        return cls(**vars(body))
    except (TypeError, ValueError) as error:  # the tracker's own refusals
        raise TrainError(f"config.{name}: {error}") from None


def _take_files(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The files of `--config FILE`, and the arguments without them."""
    files, rest = [], []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--config" or argument.startswith("--config="):
            path = argument.removeprefix("--config").removeprefix("=") or next(remaining, "")
            if not path or path.startswith("--"):
                raise TrainError("--config needs the name of a YAML file; single options are --config.SECTION.NAME")
            files.append(path)
        else:
            rest.append(argument)
    return files, rest


def _with_lists(arguments: Sequence[str]) -> list[str]:
    """Lists may be written without brackets: `q_proj,v_proj` becomes `[q_proj,v_proj]`."""
    lists = {option.flag for option in options().values() if option.is_list}
    bracketed: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in lists and equals:
            argument = f"{name}={_bracketed(value)}"
        elif bracketed and bracketed[-1] in lists:
            argument = _bracketed(argument)
        bracketed.append(argument)
    return bracketed


def _bracketed(value: str) -> str:
    return value if value.startswith("[") or value in ("null", "None") else f"[{value}]"


def _apply_flags(config: Config, parsed: Any, in_files: set[str], on_line: set[str]) -> None:
    for flag in FLAGS:
        given = getattr(parsed, flag.name)
        if given is None or given is False:
            continue
        taken = on_line | in_files if flag.value == "N" else on_line
        for name in flag.sets:
            if f"tracker.{name}" not in taken:
                setattr(config.tracker, name, given)
    if parsed.tracking_frequency is not None and not config.tracker.enabled:
        raise TrainError("--tracking_frequency without anything to track: add --enable_tracking")
    config.tracker = _section("tracker", TrackerConfig, config.tracker)  # checks what was set just now


def _in_words(message: str) -> str:
    """jsonargparse's message, with the expected type in words."""
    keys = re.findall(r'key "(?:config\.)?([\w.]+)"', message)
    given = re.search(r"(?:Given|Got) value: (.*)", message)
    if keys and given is not None:
        option = options().get(keys[-1])  # the innermost
        name, wants = (option.flag, option.wanted) if option else (f"--{keys[-1]}", "a whole number")
        return f"{name} wants {wants}, not {given[1].strip()!r}"
    bare = re.search(r"--([\w.]+).*expected one argument", message)
    if bare is not None:
        option = options().get(bare[1].removeprefix("config."))
        return f"--{bare[1]} needs a value" + (f": {option.wanted}" if option else "")
    return " ".join(message.split())
