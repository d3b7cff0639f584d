"""The output folder: an earlier training in it is resumed, left alone with an error, or removed on request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from learnscope.store.files import write_text
from learnscope.training.errors import TrainError
from learnscope.training.families import WITHOUT_RANK, family_of
from learnscope.training.settings.config import Config

MARK = "train_config.yaml"
"""The configuration of the training that wrote the folder; can be given to --config."""
RUN, BASE = "run", "base_model"
_FOLDERS = (RUN, "spectral_logs", "gradient_logs")
_FILES = (
    MARK, "adapter_config.json", "adapter_model.safetensors", "spectral_history_final.pt", "gradient_flow_final.pt",
)  # fmt: skip
_PEFT_TYPES = {"adalora": "ADALORA", "vera": "VERA", "ia3": "IA3", "layernorm": "LN_TUNING"}


def open_folder(config: Config) -> Path | None:
    """Check that the training may write to its folders; returns the checkpoint to resume from, if any."""
    folder = Path(config.training.output_dir)
    for path in (folder, Path(config.tracker.tracking_output_dir or folder)):
        if path.exists() and not path.is_dir():
            raise TrainError(f"{path} is a file; an output folder is needed")
    checkpoint = _checkpoint(config, folder)
    if checkpoint is None:
        _check_room(config, folder)
    return checkpoint


def begin(config: Config, text: str, *, resume: bool) -> None:
    """Called right before training: removes what is to be overwritten and writes the configuration.

    Only files that this command writes are removed, by name, and never the model to be adapted.
    """
    folder, model = Path(config.training.output_dir), config.model.model_name_or_path
    if not resume and config.training.overwrite_output_dir:
        for path in [folder / name for name in _FOLDERS] + list(folder.glob("checkpoint-*")):
            keep = model is not None and Path(model).resolve().is_relative_to(path.resolve())
            if path.is_dir() and not path.is_symlink() and not keep:
                shutil.rmtree(path)
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
    write_text(folder / MARK, text)


def step_of(checkpoint: Path) -> int:
    try:
        return int(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        raise TrainError(
            f"{checkpoint} is no checkpoint: its trainer_state.json is missing or damaged; name another"
        ) from None


def newest(folder: Path) -> Path | None:
    """The complete checkpoint of the highest step."""
    complete = [path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    numbered = {int(number): path for path in complete if (number := path.name.rpartition("-")[2]).isdigit()}
    return numbered[max(numbered)] if numbered else None


def _checkpoint(config: Config, folder: Path) -> Path | None:
    asked = config.training.resume_from_checkpoint
    if asked in (None, False) or str(asked).lower() in ("false", "none", ""):
        return None
    if asked is True or str(asked).lower() in ("true", "latest"):
        checkpoint = newest(folder)
        if checkpoint is None:
            raise TrainError(f"there is no checkpoint in {folder} to resume from: leave resume_from_checkpoint out")
    else:
        checkpoint = Path(str(asked))
        if not checkpoint.is_dir():
            raise TrainError(f"config.training.resume_from_checkpoint: there is no folder {checkpoint}")
    done, steps = step_of(checkpoint), config.training.max_steps
    if steps is not None and done >= steps:
        raise TrainError(
            f"{checkpoint} is at step {done} and max_steps is {steps}: nothing is left to train; raise max_steps"
        )
    _check_adapter(config, checkpoint)
    return checkpoint


def _check_adapter(config: Config, checkpoint: Path) -> None:
    """Refuse a checkpoint of another family or rank: PEFT would load those tensors that happen to fit."""
    try:
        saved = json.loads((checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise TrainError(
            f"{checkpoint} holds no adapter (adapter_config.json): name a checkpoint of this command"
        ) from None
    family = family_of(config.peft.type)
    expected: dict[str, Any] = {"peft_type": _PEFT_TYPES.get(family, "LORA")}
    if expected["peft_type"] == "LORA":
        expected |= {"use_dora": family == "dora", "use_rslora": family == "rslora"}
        expected["init_lora_weights"] = "pissa" if family == "pissa" else True
    if family not in WITHOUT_RANK and family != "adalora" and config.peft.adapter_name_or_path is None:
        expected["r"] = config.peft.r
    for name, value in expected.items():
        if saved.get(name) != value:
            raise TrainError(
                f"{checkpoint} is not of this training: its adapter has {name}={saved.get(name)!r}, and config.peft "
                f"asks for {value!r}; resume with the options it was begun with ({MARK} beside it)"
            )


def _check_room(config: Config, folder: Path) -> None:
    logs = Path(config.tracker.tracking_output_dir or folder)
    left = [folder / name for name in _FILES if (folder / name).exists()]
    left += [path for path in (folder / RUN, *sorted(folder.glob("checkpoint-*"))) if path.exists()]
    if config.tracker.enabled and logs != folder:
        left += [logs / name for name in ("spectral_logs", "gradient_logs") if (logs / name).exists()]
    if not left:
        return
    if not config.training.overwrite_output_dir:
        resume = (
            " --config.training.resume_from_checkpoint latest goes on from its newest checkpoint,"
            if newest(folder)
            else ""
        )
        raise TrainError(
            f"{left[0]} is there from an earlier training, and is left as it is:{resume} "
            "--config.training.output_dir DIR writes elsewhere, --config.training.overwrite_output_dir true removes it"
        )
    if not (folder / MARK).is_file():
        raise TrainError(f"{folder} was not written by this command (it has no {MARK}), so nothing in it is removed")
