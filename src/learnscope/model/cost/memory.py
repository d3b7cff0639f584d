"""Peak memory of one forward pass: of an accelerator, of a fresh process, or of this one."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.cost.calls import Call, call_of
from learnscope.model.cost.memory_child import NoHighWaterMark, peak_of
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Task

PATIENCE = 600
"""Timeout of the fresh process in seconds."""


class NotFresh(RuntimeError):
    """The model cannot be run in a separate process; the message says why."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes at the peak, and how many of them are above the loaded model; None with the reason if unknown."""

    process: str
    peak: int | None
    run: int | None
    reason: str | None = None
    not_fresh_reason: str | None = None
    libraries: int | None = None
    """Bytes of the interpreter and libraries before the model was loaded, which are part of the peak."""
    exact: bool = True
    """False: a lower bound, since the high-water mark of the process could not be reset."""


@torch.no_grad()
def peak_memory(model: nn.Module, task: Task, batch: Any) -> Peak:
    """Peak memory of one pass over `batch` in eval mode; the model is left as it was."""
    device = model_device(model)
    batch = task.to(batch, device)
    with guard(model):
        if device.type != "cpu":
            return _on_accelerator(model, task, batch, device)
        call = call_of(model, task, batch)
        try:
            return _in_fresh_process(model, call)
        except NotFresh as reason:
            not_fresh = str(reason)
        run = call.run
        del call  # and the logits of the first pass, which would add to the peak of the second
        try:
            before, peak = peak_of(run)
        except NoHighWaterMark as error:
            return Peak("own", None, None, str(error), not_fresh)
        return Peak("own", peak, peak - before, None, not_fresh)


def _on_accelerator(model: nn.Module, task: Task, batch: Any, device: torch.device) -> Peak:
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "reset_peak_memory_stats"):
        return Peak("own", None, None, f"the allocator of {device.type} keeps no peak")
    module.synchronize(device)
    module.reset_peak_memory_stats(device)
    before = int(module.memory_allocated(device))
    task.logits(model, batch)
    module.synchronize(device)
    peak = int(module.max_memory_allocated(device))
    return Peak("own", peak, peak - before)


def _in_fresh_process(model: nn.Module, call: Call) -> Peak:
    kind = type(model).__name__
    transformers = sys.modules.get("transformers")
    if transformers is None or getattr(transformers, kind, None) is not type(model):
        raise NotFresh(f"only models of transformers can be loaded again by another process, and {kind} is none")
    dtypes = {p.dtype for p in model.parameters()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise NotFresh("the model's parameters are not all of one floating-point type")
    if call.kwargs is None or call.args:
        raise NotFresh("the task does not call the model once and with named arguments alone")
    plain = {name: value for name, value in call.kwargs.items() if not isinstance(value, Tensor)}
    try:
        json.dumps(plain)
    except (TypeError, ValueError):
        raise NotFresh("the task gives the model more than tensors and plain values") from None
    tensors = {name: value.contiguous() for name, value in call.kwargs.items() if isinstance(value, Tensor)}
    with tempfile.TemporaryDirectory(prefix="learnscope-") as folder:
        try:
            _write(model, tensors, plain, Path(folder))
        except OSError as error:
            raise NotFresh(f"the model could not be written for another process ({error})") from error
        numbers = _run_child(folder)
    parameters = sum(p.numel() for p in model.parameters())
    if numbers["parameters"] != parameters:
        raise NotFresh(f"loaded again, the model has {numbers['parameters']:,} parameters and not {parameters:,}")
    run = numbers["peak"] - numbers["loaded"]
    return Peak("fresh", numbers["peak"], run, libraries=numbers["libraries"], exact=numbers["exact"])


def _write(model: nn.Module, tensors: dict[str, Tensor], plain: dict[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    config: Any = copy.deepcopy(model.config)  # writing a configuration changes it
    config.save_pretrained(folder)
    weights: dict[Any, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        # tied weights once: loading ties them again
        place = (tensor.data_ptr(), tensor.numel()) if tensor.numel() else name
        weights.setdefault(place, (name, tensor.contiguous()))
    save_file(dict(weights.values()), folder / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "inputs.safetensors")
    call = {
        "class": type(model).__name__, "plain": plain, "threads": torch.get_num_threads(),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "attention": getattr(config, "_attn_implementation", None),
    }  # fmt: skip
    (folder / "call.json").write_text(json.dumps(call), encoding="utf-8")


def _run_child(folder: str) -> dict[str, Any]:
    """Run it as a subprocess: multiprocessing would import, and so run, the caller's script again."""
    source = str(Path(__file__).parents[3])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", "-m", "learnscope.model.cost.memory_child", folder]
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFresh(f"another process could not run the model ({error})") from error
    lines = result.stdout.splitlines()
    if result.returncode or not lines:
        errors = result.stderr.strip().splitlines() or [f"it ended with {result.returncode}"]
        raise NotFresh(f"another process could not run the model: {errors[-1]}")
    numbers: dict[str, Any] = json.loads(lines[-1])
    return numbers
