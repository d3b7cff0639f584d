"""The command line of `learnscope train`: flags, dotted options and a file become a `Config`.

Unknown options are refused, with the option that was probably meant and its section.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from learnscope.options import nearest
from learnscope.trackers.config import TrackerConfig
from learnscope.training.errors import TrainError
from learnscope.training.settings.config import Config
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
        value = getattr(parsed, flag.name)
        if value is None or value is False:
            continue
        taken = on_line | in_files if flag.value == "N" else on_line
        for name in flag.sets:
            if f"tracker.{name}" not in taken:
                setattr(config.tracker, name, value)
    if parsed.tracking_frequency is not None and not config.tracker.enabled:
        raise TrainError("--tracking_frequency without anything to track: add --enable_tracking")
    config.tracker = _section("tracker", TrackerConfig, config.tracker)  # checks what was set just now


def _in_words(message: str) -> str:
    """jsonargparse's message, with the expected type in words."""
    keys = re.findall(r'key "(?:config\.)?([\w.]+)"', message)
    refused = re.search(r"(?:Given|Got) value: (.*)", message)
    if keys and refused is not None:
        option = options().get(keys[-1])  # the innermost
        name, wants = (option.flag, option.wanted) if option else (f"--{keys[-1]}", "a whole number")
        return f"{name} wants {wants}, not {refused[1].strip()!r}"
    bare = re.search(r"--([\w.]+).*expected one argument", message)
    if bare is not None:
        option = options().get(bare[1].removeprefix("config."))
        return f"--{bare[1]} needs a value" + (f": {option.wanted}" if option else "")
    return " ".join(message.split())


OTHERS = ("--config", "--print_config", "--help")


def file_keys(path: str) -> set[str]:
    """The options that a configuration file sets; an unknown one is refused."""
    try:
        body = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainError(f"--config {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TrainError(f"--config {path} is no YAML: {' '.join(str(error).split())}") from None
    shape = f"its top level names {', '.join(sections())}, and below each its options"
    if not isinstance(body, Mapping):
        raise TrainError(f"--config {path} holds no options: {shape}")
    keys = set()
    for section, entries in body.items():
        if section not in sections():
            near = nearest(section, sections())
            same = [option.key for option in options().values() if option.name == section]
            hint = f" (did you mean {near[0]!r}?)" if near else f" (the option is {same[0]})" if same else ""
            raise TrainError(f"--config {path}: there is no section {section!r}{hint}; {shape}")
        if not isinstance(entries, Mapping):
            raise TrainError(f"--config {path}: below {section!r} there must be options, not {entries!r}")
        for name in entries:
            if f"{section}.{name}" not in options():
                raise TrainError(
                    f"--config {path}: there is no option {section}.{name}. {_suggest(section, str(name))}"
                )
            keys.add(f"{section}.{name}")
    return keys


def check_flags(arguments: Sequence[str]) -> set[str]:
    """The options that the command line sets by their long names; an unknown one is refused."""
    known = {*OTHERS, "-h", *(f"--{flag.name}" for flag in FLAGS), *(option.flag for option in options().values())}
    keys = set()
    for argument in arguments:
        name = argument.split("=", 1)[0]
        if not name.startswith("-") or name == "-" or name.removeprefix("-")[:1].isdigit():
            continue  # a value, such as -1
        if name not in known:
            section, _, option = name.lstrip("-").removeprefix("config.").rpartition(".")
            raise TrainError(f"there is no option {name}. {_suggest(section, option)}")
        if name.startswith("--config."):
            keys.add(name.removeprefix("--config."))
    return keys


def _suggest(section: str, name: str) -> str:
    """What was probably meant: the same name in another section, else the nearest in this one, else in any."""
    known = options().values()
    own = [option for option in known if option.section == section]
    near = [option.flag for option in known if option.name == name]
    if not near and not section:
        short = [*(flag.name for flag in FLAGS), *(other.removeprefix("--") for other in OTHERS)]
        near = [f"--{close}" for close in nearest(name, short)]
    for candidates in (own, known):
        if not near:
            flags = {option.name: option.flag for option in candidates}
            near = [flags[close] for close in nearest(name, flags)]
    if near:
        return f"Did you mean {near[0]}?"
    if section in sections():
        return f"The options of {section}: {', '.join(option.name for option in own)}."
    return "`learnscope train --help` lists all."
