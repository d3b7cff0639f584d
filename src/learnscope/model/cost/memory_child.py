"""One forward pass in a separate process: `python -m learnscope.model.cost.memory_child FOLDER` prints its memory.

The folder holds the configuration and weights of a model of transformers, `inputs.safetensors`, and `call.json`.
Nothing in it is code, and nothing is unpickled.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

UNUSED = ("torchao", "accelerate", "scipy", "sklearn")
STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


class NoHighWaterMark(RuntimeError):
    """The system does not report the maximum of a process's memory, or does not let it be reset."""


def peak_of(run: Callable[[], Any]) -> tuple[int, int]:
    """Bytes of the process's memory before `run`, and the maximum during it."""
    gc.collect()
    give_back()
    try:
        CLEAR.write_text("5")
    except OSError as error:
        raise NoHighWaterMark(f"the high-water mark of the memory cannot be reset ({error})") from error
    before = kilobytes("VmRSS") * 1024
    result = run()
    peak = kilobytes("VmHWM") * 1024
    del result  # held until here: the returned outputs belong to the peak
    return before, peak


def most_so_far() -> int:
    """Maximum memory of the process since its start, in bytes."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # kilobytes, but on macOS


def kilobytes(name: str) -> int:
    """A line of the process's status: `VmRSS` is the current memory, `VmHWM` the maximum so far."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError as error:
        raise NoHighWaterMark(f"the system does not report how much memory a process has ({error})") from error
    for line in lines:
        if line.startswith(f"{name}:") and line.endswith(" kB"):
            return int(line.split()[1])
    raise NoHighWaterMark(f"the process's status has no line {name}")


def give_back() -> None:
    """Make the allocator return unused memory, since allocations from it would not raise the mark."""
    with suppress(OSError, AttributeError, TypeError):  # not glibc: nothing to return, or it does so itself
        ctypes.CDLL(None).malloc_trim(0)


@torch.no_grad()
def one_pass(folder: Path) -> dict[str, Any]:
    """Load the model and run it once in eval mode; returns the bytes before loading, after it, and at the peak."""
    import transformers

    call = json.loads((folder / "call.json").read_text(encoding="utf-8"))
    torch.set_num_threads(call["threads"])
    inputs = {name: tensor.clone() for name, tensor in load_file(folder / "inputs.safetensors").items()}
    model_class = getattr(transformers, call["class"])  # imports the model's code
    give_back()
    try:
        libraries = kilobytes("VmRSS") * 1024
    except NoHighWaterMark:
        libraries = most_so_far()
    model = model_class.from_pretrained(
        folder, dtype=getattr(torch, call["dtype"]), attn_implementation=call["attention"]
    )
    model.eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # a mapped file is in memory only after it has been read
    arguments = {**inputs, **call["plain"]}
    try:
        (loaded, peak), exact = peak_of(lambda: model(**arguments)), True
    except NoHighWaterMark:  # the maximum since the process started: at least what the pass needed
        loaded = most_so_far()
        model(**arguments)
        peak, exact = most_so_far(), False
    parameters = sum(p.numel() for p in model.parameters())
    return {"libraries": libraries, "loaded": loaded, "peak": peak, "exact": exact, "parameters": parameters}


def _hide_unused() -> None:
    """Hide packages that no plain model needs: importing them takes a third of the time, and counts in the peak."""
    find = importlib.util.find_spec

    def find_others(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in UNUSED else find(name, package)

    importlib.util.find_spec = find_others


if __name__ == "__main__":
    _hide_unused()
    print(json.dumps(one_pass(Path(sys.argv[1]))))
