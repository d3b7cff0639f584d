"""Messages that name options of Python, in the flags of `learnscope audit`."""

from __future__ import annotations

import re

FLAGS = {
    "activation_bits": "--activation_bits", "batch_size": "--batch_size", "bits": "--bits", "cache": "--no_cache",
    "config_path": "--config_path", "data": "--data", "device": "--device", "embeddings": "--embeddings",
    "examples": "--examples", "export": "--export", "export_format": "--export_format",
    "granularity": "--granularity", "group_size": "--group_size", "label_column": "--label_column",
    "length": "--length", "max_bytes": "--max_mb", "max_increase": "--max_increase", "max_kl": "--max_kl",
    "method": "--method", "output_dir": "--output_dir", "parts": "--parts", "quick": "--quick", "seed": "--seed",
    "split": "--data_split", "task": "--task", "tasks": "--task", "text_column": "--text_column",
    "thorough": "--thorough", "tokenizer": "--tokenizer",
}  # fmt: skip
"""The flag of each option. Messages write an option as Python does, `name=` or `name=value`."""
_OPTION = re.compile(rf"\b({'|'.join(FLAGS)})=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[-+.\w]*\w)?")


def in_flags(message: str) -> str:
    """The message with the flags in place of the options.

    >>> in_flags("no tokenizer: pass tokenizer= (a folder), or leave split='validation' out")
    "no tokenizer: pass --tokenizer (a folder), or leave --data_split 'validation' out"
    >>> in_flags("max_bytes=2500000 cannot be kept")
    '--max_mb 2.5 cannot be kept'
    """
    return _OPTION.sub(_in_flag, message)


def _in_flag(option: re.Match[str]) -> str:
    name, value = option[1], option[2]
    if value is None or name == "cache":  # the flag for no cache takes no value
        return FLAGS[name]
    if name == "max_bytes" and value.isdigit():
        value = f"{int(value) / 1e6:g}"
    return f"{FLAGS[name]} {value}"
