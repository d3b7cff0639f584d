"""What `learnscope train --help` prints: examples first, then every option with its default."""

from __future__ import annotations

import shutil
import textwrap

from learnscope.training.settings.options import FLAGS, Option, options, sections

_ABOUT = """Trains an adapter (PEFT) on a language model with TRL, by supervised fine-tuning or GRPO, and on request \
tracks the spectra of its updates and the gradients of its parts. Without any option a tiny model is made on the spot \
and adapted to generated arithmetic, offline, within a minute."""

_EXAMPLES = """\
  {prog} --enable_tracking --tracking_frequency 20
  {prog} --enable_tracking --config.peft.type dora --config.training.method grpo \\
      --config.training.output_dir runs/dora
  {prog} --enable_tracking --config.model.model_name_or_path deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B \\
      --config.dataset.dataset_name_or_path Jiayi-Pan/Countdown-Tasks-3to4 --config.training.method grpo
  {prog} --config.training.resume_from_checkpoint latest
  {prog} --print_config > train.yaml && {prog} --config train.yaml
"""

_GENERAL = (
    ("--config FILE", "A YAML file of options: a mapping for each section below. The command line overrides it."),
    ("--print_config", "Print all options as such a file, with what the command line sets, and stop."),
    ("-h, --help", "This text."),
)  # fmt: skip


def help_text(prog: str) -> str:
    """The whole text, as wide as the terminal, up to 110 columns."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 110)
    flags = {f"--{flag.name} {flag.value or ''}".rstrip(): flag.doc for flag in FLAGS}
    parts = [
        f"usage: {prog} [FLAG ...] [--config FILE] [--config.SECTION.NAME VALUE ...]\n",
        textwrap.fill(_ABOUT, width) + "\n",
        "examples:\n" + _EXAMPLES.format(prog=prog),
        "general:\n" + "".join(_entry(name, doc, width) for name, doc in _GENERAL),
        "tracking:\n" + "".join(_entry(name, doc, width) for name, doc in flags.items()),
    ]
    for section, cls in sections().items():
        title = (cls.__doc__ or section).strip().splitlines()[0].split(";")[0].rstrip(".")
        own = [option for option in options().values() if option.section == section]
        parts.append(f"{section}: {title}\n" + "".join(_entry(_long(opt), _described(opt), width) for opt in own))
    return "\n".join(parts)


def _entry(name: str, doc: str, width: int) -> str:
    body = textwrap.fill(doc, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return f"  {name}\n{body}\n"


def _long(option: Option) -> str:
    wanted = option.wanted.removesuffix(", or null")
    if wanted.startswith("one of "):
        value = "{" + wanted.removeprefix("one of ").replace(", ", ",") + "}"
    else:
        values = {"a whole number": "N", "a number": "X", "true or false": "true|false", "text": "TEXT"}
        value = values.get(wanted, "[A,B]" if "list" in wanted else "TEXT")
    return f"{option.flag} {value}"


def _described(option: Option) -> str:
    if "Default:" in option.doc:
        return option.doc
    default = option.default
    words = str(default).lower() if isinstance(default, bool) else str(default)
    return f"{option.doc} Default: {'none' if default is None or default == [] else words}."
