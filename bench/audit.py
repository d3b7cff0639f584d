"""What an audit costs: layer sensitivity beside full re-evaluation, basic metrics beside one pass, and all of it.

    python bench/audit.py [--quick]

- *sensitivity*: a GPT-2 of 12 layers, 128 wide, with 256 tokens, every attention and MLP at three bit widths. Beside
  the probe, which re-runs only what follows the changed unit, stands a loop that evaluates the whole model for each.
  The head is the same for both: with larger vocabularies its share, which no suffix saves, is printed.
- *basic metrics*: loss, perplexity, accuracy, top-k and their intervals, beside a bare pass with a cross entropy.
- *whole audit*: `learnscope audit` on a GPT-2 of 10 million parameters, as a process of its own, on two threads.

Ratios are medians over runs that take turns, on one thread. Exits with 1 if a stated bound is missed.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tools.figures import interleaved, report, save
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.outputs.reference import compare_outputs, reference_outputs
from learnscope.posttrain.builtin import bpe_tokenizer
from learnscope.posttrain.session import AuditSession
from learnscope.probes import BitSensitivity, Performance
from learnscope.sources import builtin_rows
from learnscope.task import HuggingFaceTask
from learnscope.tensor.bits.quantize import Scheme

BITS = (8, 4, 2)
BOUNDS = {
    "sensitivity / full re-evaluation": 0.6,
    "basic metrics / one pass": 1.1,
    "whole audit of 10 M parameters, s": 300.0,
}


def gpt2(vocabulary: int, *, layers: int = 12, width: int = 128, positions: int = 256) -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary, n_positions=positions, n_embd=width, n_layer=layers, n_head=width // 32,
            bos_token_id=0, eos_token_id=0,
        )
    ).eval()  # fmt: skip


def tokens(vocabulary: int, rows: int, length: int) -> dict[str, Tensor]:
    ids = torch.randint(1, vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def sensitivity(vocabulary: int, repeats: int, layers: int) -> dict[str, float]:
    """Medians of seconds: by the probe, and by a loop over whole evaluations that gives the same numbers."""
    model, batches = gpt2(vocabulary, layers=layers), [tokens(vocabulary, 1, 256)]
    task, units, scheme = HuggingFaceTask(), find_units(model), Scheme()

    def whole() -> dict[tuple[str, int], float]:
        reference = reference_outputs(model, task, batches)
        found = {}
        for unit in units:
            for bits in BITS:
                with quantised(model, {unit.name: bits}, scheme, units=units):
                    found[unit.name, bits] = float(compare_outputs(model, task, batches, reference)["kl"])
        return found

    def suffix() -> dict[tuple[str, int], float]:
        record = AuditSession(model).measure(BitSensitivity(bits=BITS), batches)
        return {
            (scope, int(column.labels["bits"])): value
            for table in record.tables
            for column in table.columns
            if column.name == "kl"
            for scope, value in zip(table.scopes, column.values, strict=True)
        }

    first, second = whole(), suffix()
    assert first == second, "the suffix alone gives the same numbers, to the bit"
    times = interleaved({"whole": whole, "suffix": suffix}, repeats)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def head_share(vocabulary: int, layers: int) -> float:
    """Of a whole evaluation, what the head takes: the hidden states are there, the logits are not."""
    model, batch = gpt2(vocabulary, layers=layers), tokens(vocabulary, 1, 256)
    with torch.no_grad():
        hidden = model.transformer(batch["input_ids"])[0]
        times = interleaved(
            {"head": lambda: model.lm_head(hidden), "whole": lambda: model(batch["input_ids"])}, 7
        )  # fmt: skip
    return statistics.median(times["head"]) / statistics.median(times["whole"])


def metrics(vocabulary: int, repeats: int, layers: int) -> float:
    """Seconds of the probe beside those of a bare pass."""
    model = gpt2(vocabulary, layers=layers)
    batches = [tokens(vocabulary, 8, 128) for _ in range(8)]  # a quarter of what an audit looks at by default

    def bare() -> float:
        total = 0.0
        with torch.no_grad():
            for batch in batches:
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                total += float(F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()))
        return total

    times = interleaved({"bare": bare, "probe": lambda: AuditSession(model).measure(Performance(), batches)}, repeats)
    return statistics.median(p / b for p, b in zip(times["probe"], times["bare"], strict=True))


def whole_audit(folder: Path, *, quick: bool) -> tuple[float, float]:
    """Millions of parameters of the model, and seconds of the whole audit of it."""
    model = gpt2(1000, layers=2, width=64) if quick else gpt2(1000, layers=12, width=256)
    bpe_tokenizer([row["text"] for row in builtin_rows("train")], 1000).save_pretrained(folder / "model")
    model.save_pretrained(folder / "model")
    command = [
        sys.executable, "-m", "learnscope.cli", "audit", "--model_path", str(folder / "model"),
        "--output_dir", str(folder / "results"), "--data_split", "validation", "--threads", "1" if quick else "2",
        *(["--examples", "16"] if quick else []),
    ]  # fmt: skip
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - started
    assert len(list((folder / "results" / "plots").glob("*.png"))) == 9
    return sum(p.numel() for p in model.parameters()) / 1e6, seconds


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it runs; bounds are not judged")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    repeats, layers = (1, 2) if quick else (5, 12)
    figures: dict[str, float] = {}
    seconds = sensitivity(1000, repeats, layers)
    figures["sensitivity / full re-evaluation"] = seconds["suffix"] / seconds["whole"]
    for vocabulary in (1000,) if quick else (1000, 10_000, 50_257):
        figures[f"head's share of an evaluation, {vocabulary:,} tokens"] = head_share(vocabulary, layers)
    if not quick:
        seconds = sensitivity(10_000, 1, layers)
        figures["sensitivity / full re-evaluation, 10,000 tokens"] = seconds["suffix"] / seconds["whole"]
    figures["basic metrics / one pass"] = metrics(1000, 3 if quick else 11, layers)
    if not quick:
        figures["basic metrics / one pass, 50,257 tokens"] = metrics(50_257, 3, layers)
    with tempfile.TemporaryDirectory() as folder:
        millions, whole = whole_audit(Path(folder), quick=quick)
    figures["parameters of the audited model, M"] = millions
    figures["whole audit of 10 M parameters, s"] = whole
    held = report(figures, {} if quick else BOUNDS)
    if not quick:
        save("audit", figures, BOUNDS)
    return held


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
