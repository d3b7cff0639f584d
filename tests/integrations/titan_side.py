"""torchtitan's own trainer on a CPU, in an environment of its own; and a loop without it on the same model and data.

    python titan_side.py train FOLDER RESULT --job.config_file FILE …     as `python -m torchtitan.train …`
    python titan_side.py raw FOLDER RESULT STEPS

torchtitan asks torch for an accelerator and takes `cuda` if there is none. Here it is told that there is one, called
`cpu`, and what it asks of a device besides (its name and memory) is answered; nothing else of it is changed. The model
is torchtitan's llama3, small; the text and its tokens are made here.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils

SEED, LENGTH, BATCH, PARTS, CLIP, RATE = 7, 16, 2, 2, 0.2, 1e-2
MODELS: list[torch.nn.Module] = []


class Cpu:
    """What torchtitan asks of a device's module, of a CPU."""

    set_device, current_device = staticmethod(torch.cpu.set_device), staticmethod(lambda: 0)
    synchronize = staticmethod(torch.cpu.synchronize)
    get_device_name = staticmethod(lambda _device: "cpu")
    get_device_properties = staticmethod(lambda _device: SimpleNamespace(total_memory=2**30))
    memory_stats = staticmethod(lambda _device: {})
    reset_peak_memory_stats = empty_cache = staticmethod(lambda: None)


def on_cpu() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _kind: Cpu
    torch.set_num_threads(1)


def make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["<s>", "</s>", *(f"w{k}" for k in range(30))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def register(name: str = "tiny") -> Any:
    """A small llama3 and a text, as torchtitan lets a user add them."""
    import dataclasses

    import torchtitan.models.llama3 as llama
    from datasets import Dataset
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS
    from torchtitan.protocols.train_spec import get_train_spec, register_train_spec

    def text(seed: int) -> Any:
        draw = torch.Generator().manual_seed(seed)
        rows = torch.randint(1, 30, (60, 9), generator=draw).tolist()
        return Dataset.from_list([{"text": " ".join(f"w{word}" for word in row)} for row in rows])

    for key, seed in (("tiny", 1), ("tiny_held_out", 2)):
        DATASETS[key] = DatasetConfig(
            path="", loader=lambda _, s=seed: text(s), sample_processor=lambda row: row["text"]
        )
    sizes = llama.TransformerModelArgs(dim=16, n_layers=2, n_heads=2, vocab_size=32, multiple_of=8, max_seq_len=LENGTH)
    spec = get_train_spec("llama3")

    class Kept(spec.model_cls):  # type: ignore[misc, name-defined]
        def __init__(self, args: Any) -> None:
            super().__init__(args)
            MODELS.append(self)

    spec = dataclasses.replace(spec, model_cls=Kept, model_args={"tiny": sizes})
    register_train_spec(name, spec)
    return spec


def digest(model: torch.nn.Module) -> str:
    whole = hashlib.sha256()
    for name, value in model.state_dict().items():
        whole.update(name.encode() + value.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def train(result: Path, arguments: list[str]) -> None:
    sys.argv = ["torchtitan.train", *arguments]  # read when torchtitan is imported
    register()
    runpy.run_module("torchtitan.train", run_name="__main__")
    result.write_text(json.dumps({"weights": digest(MODELS[-1])}))


def raw(folder: Path, result: Path, steps: int) -> None:
    """A plain loop: gradients of a step are those of its tokens' mean loss."""
    from torchtitan.components.tokenizer import build_hf_tokenizer
    from torchtitan.config import JobConfig
    from torchtitan.hf_datasets.text_datasets import build_text_dataloader

    spec, job = register(), JobConfig()
    job.model.hf_assets_path = str(folder / "tokens")
    job.training.dataset, job.training.seq_len, job.training.local_batch_size = "tiny", LENGTH, BATCH
    torch.manual_seed(SEED)
    with torch.device("meta"):
        model = spec.model_cls(spec.model_args["tiny"])
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    tokenizer = build_hf_tokenizer(job)
    made = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": tokenizer, "job_config": job}
    batches, parameters = iter(build_text_dataloader(**made)), list(model.parameters())
    options = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "fused": True}
    optimizer = torch.optim.AdamW(parameters, **options)
    seen: dict[str, list[float]] = {"loss": [], "before": [], "after": [], "moved": []}
    for _ in range(steps):
        optimizer.zero_grad()
        micro = [next(batches) for _ in range(PARTS)]
        tokens, total = sum(labels.numel() for _, labels in micro), 0.0
        for inputs, labels in micro:
            logits = model(inputs["input"])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
            (loss / float(tokens)).backward()
            total += float(loss.detach()) / tokens
        seen["loss"].append(total)
        seen["before"].append(norm([p.grad for p in parameters]))
        torch.nn.utils.clip_grad_norm_(parameters, CLIP, foreach=True)
        seen["after"].append(norm([p.grad for p in parameters]))
        old = [p.detach().clone() for p in parameters]
        optimizer.step()
        seen["moved"].append(norm([p.detach() - before for p, before in zip(parameters, old, strict=True)]))
    result.write_text(json.dumps({"weights": digest(model), **seen}))


def norm(tensors: list[Any]) -> float:
    return float(torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt())


if __name__ == "__main__":
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(key, value)
    on_cpu()
    mode, here, written = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    make_tokenizer(here / "tokens")
    train(written, sys.argv[4:]) if mode == "train" else raw(here, written, int(sys.argv[4]))
