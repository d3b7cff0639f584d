"""One forward pass in a separate process: `python -m learnscope.model.cost.memory_child FOLDER` prints its memory.

The folder holds the configuration and weights of a model of transformers, `inputs.safetensors`, and `call.json`.
Nothing in it is code, and nothing is unpickled.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from learnscope.model.cost.high_water import NoHighWaterMark, give_back, kilobytes, most_so_far, peak_of

UNUSED = ("torchao", "accelerate", "scipy", "sklearn")


@torch.no_grad()
def one_pass(folder: Path) -> dict[str, Any]:
    """Load the model and run it once in eval mode; returns the bytes before loading, after it, and at the peak."""
    import transformers

    call = json.loads((folder / "call.json").read_text(encoding="utf-8"))
    torch.set_num_threads(call["threads"])
    inputs = {name: tensor.clone() for name, tensor in load_file(folder / "inputs.safetensors").items()}
    kind = getattr(transformers, call["class"])  # imports the model's code
    give_back()
    libraries = _now()
    model = kind.from_pretrained(folder, dtype=getattr(torch, call["dtype"]), attn_implementation=call["attention"])
    model.eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # a mapped file is in memory only after it has been read
    arguments = {**inputs, **call["plain"]}
    try:
        marks = peak_of(lambda: model(**arguments))
        before, peak, exact = marks.before, marks.peak, True
    except NoHighWaterMark:  # the maximum since the process started: at least what the pass needed
        before = most_so_far()
        model(**arguments)
        peak, exact = most_so_far(), False
    parameters = sum(p.numel() for p in model.parameters())
    return {"libraries": libraries, "loaded": before, "peak": peak, "exact": exact, "parameters": parameters}


def _now() -> int:
    try:
        return kilobytes("VmRSS") * 1024
    except NoHighWaterMark:
        return most_so_far()


def _hide_unused() -> None:
    """Hide packages from transformers that a forward pass of a plain model does not need.

    Importing them takes a third of the process's time, and their memory would be part of the peak.
    """
    find = importlib.util.find_spec

    def find_others(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in UNUSED else find(name, package)

    importlib.util.find_spec = find_others


if __name__ == "__main__":
    _hide_unused()
    print(json.dumps(one_pass(Path(sys.argv[1]))))
