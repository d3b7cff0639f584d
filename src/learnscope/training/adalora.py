"""AdaLoRA in a trainer: its schedule, its budget after every step, its penalty, and what resuming needs.

PEFT leaves all four to the training loop. A checkpoint of PEFT's holds only the ranks that are left, into which a
fresh adapter does not fit, and none of the importance scores: see `whole_matrices` and `AdaLoraCallback`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback
from typing_extensions import override

from learnscope.session.steps.optimizers import unwrap_optimizer
from learnscope.store.files import write_atomically
from learnscope.training.errors import TrainError
from learnscope.training.settings.config import PeftConfig

STATE_FILE = "adalora_importance.safetensors"
_SCORES = ("ipt", "exp_avg_ipt", "exp_avg_unc")


def fit_schedule(schedule: Any, config: PeftConfig, steps: int) -> None:
    """Fit the schedule in PEFT's configuration to a training of `steps` steps, with defaults for what is not set."""
    tinit = steps // 10 if config.tinit is None else config.tinit
    tfinal = max(1, steps // 4) if config.tfinal is None else config.tfinal
    # PEFT measures importance before, and not in, the step at which it removes ranks for the last time
    if max(tinit, 1) >= steps - tfinal:
        raise TrainError(
            f"adalora: of {steps} steps the first {tinit} (tinit) and the last {tfinal} (tfinal) leave ranks alone, so "
            "none is left to reduce them in: lower config.peft.tinit or tfinal, or train longer"
        )
    if schedule.init_r <= schedule.target_r:
        raise TrainError(f"adalora: init_r={schedule.init_r} must be more than target_r={schedule.target_r}")
    schedule.total_step, schedule.tinit, schedule.tfinal = steps, tinit, tfinal
    schedule.deltaT = max(1, steps // 50) if config.deltaT is None else config.deltaT


def orthogonality(model: Any) -> Tensor:
    """Mean over factors of ‖P Pᵀ − I‖_F. PEFT adds it to a loss that the model computes; TRL computes its own loss."""
    norms = []
    for name, factor in model.named_parameters():
        if factor.requires_grad and (".lora_A." in name or ".lora_B." in name):
            gram = factor @ factor.T if ".lora_A." in name else factor.T @ factor
            norms.append(torch.linalg.matrix_norm(gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)))
    return torch.stack(norms).mean()


@contextmanager
def whole_matrices(model: Any) -> Iterator[None]:
    """While this is active, saving keeps all ranks, with zeros in E for the removed ones: resuming needs them all."""
    config = model.peft_config["default"]
    pattern, config.rank_pattern = getattr(config, "rank_pattern", None), None
    try:
        yield
    finally:
        config.rank_pattern = pattern


class AdaLoraCallback(TrainerCallback):
    """Allocates ranks after every step, and keeps the importance scores with every checkpoint."""

    def __init__(self, config: PeftConfig, resumed: Path | None) -> None:
        self._config, self._resumed = config, resumed
        self._hook: Any = None

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        fit_schedule(model.peft_config["default"], self._config, state.max_steps)
        if self._resumed is not None:
            restore(model, self._resumed)

        def allocate(*_: Any) -> None:
            model.base_model.update_and_allocate(state.global_step + 1)

        # A hook, not on_optimizer_step: it runs before the hooks of a session that is opened later, so that a step
        # is recorded with the ranks it ends with. The gradients, which importance needs, are still there.
        self._hook = unwrap_optimizer(kwargs["optimizer"]).register_step_post_hook(allocate)

    @override
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        keep(kwargs["model"], Path(args.output_dir) / f"checkpoint-{state.global_step}")

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._hook.remove()


def keep(model: Any, checkpoint: Path) -> None:
    """Save the importance scores, and which ranks are left, in a checkpoint's folder."""
    allocator, config = model.base_model.rankallocator, model.peft_config["default"]
    tensors = {
        f"{kind}/{name}": score.detach().cpu().contiguous()
        for kind in _SCORES
        for name, score in getattr(allocator, kind).items()
    }
    for name, mask in (config.rank_pattern or {}).items():
        tensors[f"kept/{name}"] = torch.tensor(mask, dtype=torch.bool)
    write_atomically(checkpoint / STATE_FILE, lambda path: save_file(tensors, path))


def restore(model: Any, checkpoint: Path) -> None:
    path = checkpoint / STATE_FILE
    if not path.is_file():
        raise TrainError(f"{checkpoint} has no {STATE_FILE}: it was not written by an adalora training of this command")
    allocator, pattern = model.base_model.rankallocator, {}
    for key, tensor in load_file(path).items():
        kind, name = key.split("/", 1)
        if kind == "kept":
            pattern[name] = tensor.tolist()
        else:
            getattr(allocator, kind)[name] = tensor.to(model.device)
    model.peft_config["default"].rank_pattern = pattern or None
