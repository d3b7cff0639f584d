"""A GPT-2 that was trained here on the built-in text, made once on a machine and shared by tests and their workers."""

from __future__ import annotations

import getpass
import hashlib
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock

from learnscope.posttrain.builtin import Recipe, make_builtin
from learnscope.sources.builtin_text import text_hash

SMALL = Recipe(vocabulary=512, layers=2, width=64, heads=2, positions=128, length=64, steps=150)


def trained_gpt2() -> Path:
    """A Hugging Face folder with its tokenizer: two layers of 64, far better than the frequencies of its tokens."""
    made_of = json.dumps({**asdict(SMALL), "text": text_hash(), "torch": torch.__version__}, sort_keys=True)
    home = Path(tempfile.gettempdir()) / f"learnscope-tests-{getpass.getuser()}"
    home.mkdir(mode=0o700, exist_ok=True)
    folder = home / hashlib.sha256(made_of.encode()).hexdigest()[:16]
    with FileLock(f"{folder}.lock"):
        return make_builtin(folder, recipe=SMALL)
