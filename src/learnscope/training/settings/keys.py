"""Names that do not exist are refused with the one that was probably meant, and where it lives."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from learnscope.training.errors import TrainError
from learnscope.training.settings.options import FLAGS, options, sections

OTHERS = ("--config", "--print_config", "--help")


def file_keys(path: str) -> set[str]:
    """The options that a configuration file sets, all of them known."""
    try:
        body = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainError(f"--config {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TrainError(f"--config {path} is no YAML: {' '.join(str(error).split())}") from None
    shape = f"its top level names {', '.join(sections())}, and below each its options"
    if not isinstance(body, Mapping):
        raise TrainError(f"--config {path} holds no options: {shape}")
    found = set()
    for section, inside in body.items():
        if section not in sections():
            raise TrainError(f"--config {path}: there is no section {section!r}{_near_section(section)}; {shape}")
        if not isinstance(inside, Mapping):
            raise TrainError(f"--config {path}: below {section!r} there must be options, not {inside!r}")
        for name in inside:
            if f"{section}.{name}" not in options():
                raise TrainError(
                    f"--config {path}: there is no option {section}.{name}. {_suggest(section, str(name))}"
                )
            found.add(f"{section}.{name}")
    return found


def check_flags(arguments: Sequence[str]) -> set[str]:
    """The options that the command line sets by their long names, all of them known."""
    known = {*OTHERS, "-h", *(f"--{flag.name}" for flag in FLAGS), *(one.flag for one in options().values())}
    found = set()
    for argument in arguments:
        name = argument.split("=", 1)[0]
        if not _is_flag(name):
            continue
        if name not in known:
            raise TrainError(f"there is no option {name}. {_suggest(*_parts(name))}")
        if name.startswith("--config."):
            found.add(name.removeprefix("--config."))
    return found


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and not argument.removeprefix("-")[:1].isdigit() and argument != "-"


def _parts(flag: str) -> tuple[str, str]:
    """The section and the name that were written; the section may be empty."""
    *before, name = flag.lstrip("-").removeprefix("config.").split(".")
    return ".".join(before), name


def _suggest(section: str, name: str) -> str:
    """What was probably meant: the same name elsewhere, else the nearest here, else the nearest anywhere."""
    known = options().values()
    near = [one.flag for one in known if one.name == name]
    if not near and not section:
        short = [*(flag.name for flag in FLAGS), *(other.removeprefix("--") for other in OTHERS)]
        near = [f"--{close}" for close in difflib.get_close_matches(name, short, n=1)]
    for among in ([one for one in known if one.section == section], known):
        if not near:
            flags = {one.name: one.flag for one in among}
            near = [flags[close] for close in difflib.get_close_matches(name, list(flags), n=1)]
    if near:
        return f"Did you mean {near[0]}?"
    if section in sections():
        return f"The options of {section}: {', '.join(one.name for one in known if one.section == section)}."
    return "`learnscope train --help` lists all."


def _near_section(written: Any) -> str:
    near = difflib.get_close_matches(str(written), list(sections()), n=1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    home = [one.key for one in options().values() if one.name == written]
    return f" (the option is {home[0]})" if home else ""
