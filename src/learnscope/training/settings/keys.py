"""Unknown options are refused, with the option that was probably meant and its section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from learnscope.options import nearest
from learnscope.training.errors import TrainError
from learnscope.training.settings.options import FLAGS, options, sections

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
            keys.add(f"{section}.{name}")
    return keys


def check_flags(arguments: Sequence[str]) -> set[str]:
    """The options that the command line sets by their long names; an unknown one is refused."""
    known = {*OTHERS, "-h", *(f"--{flag.name}" for flag in FLAGS), *(option.flag for option in options().values())}
    keys = set()
    for argument in arguments:
        name = argument.split("=", 1)[0]
        if not _is_flag(name):
            continue
        if name not in known:
            raise TrainError(f"there is no option {name}. {_suggest(*_parts(name))}")
        if name.startswith("--config."):
            keys.add(name.removeprefix("--config."))
    return keys


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and not argument.removeprefix("-")[:1].isdigit() and argument != "-"


def _parts(flag: str) -> tuple[str, str]:
    """Section and name of a flag; the section may be empty."""
    *before, name = flag.lstrip("-").removeprefix("config.").split(".")
    return ".".join(before), name


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


def _near_section(written: Any) -> str:
    near = nearest(written, sections())
    if near:
        return f" (did you mean {near[0]!r}?)"
    keys = [option.key for option in options().values() if option.name == written]
    return f" (the option is {keys[0]})" if keys else ""
