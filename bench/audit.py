"""What an audit costs: layer sensitivity beside full re-evaluation, basic metrics beside one pass, and all of it.

    python bench/audit.py [--runs N] [--quick]

- *sensitivity*: a GPT-2 of 12 layers, 128 wide, with 256 tokens, every attention and MLP at three bit widths. Beside
  the probe, which re-runs only what follows the changed unit, stands a loop that evaluates the whole model for each.
  The limit is what the probe would take if it ran each variant's suffix by itself, with activations as the probe
  computes them, and nothing but that and what the loop does beside its passes.
- *basic metrics*: loss, perplexity, accuracy, top-k and their intervals, beside a bare pass with a cross entropy.
- *whole audit*: `learnscope audit` on a GPT-2 of 9.8 million parameters, as a process of its own, on two threads: wall
  and processor seconds of the process and those that it starts, and the wall seconds of each of its probes.

Ratios are of runs that take turns, in processor time of one thread. Exits with 1 if a stated bound is missed.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tools.claims import Claim, keep, show
from tools.figures import interleaved
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.outputs.activations import fused_activations
from learnscope.model.outputs.reference import compare_outputs, reference_outputs
from learnscope.posttrain.builtin import bpe_tokenizer
from learnscope.posttrain.session import AuditSession
from learnscope.probes import BitSensitivity, Performance
from learnscope.sources import builtin_rows
from learnscope.task import HuggingFaceTask
from learnscope.tensor.bits.quantize import Scheme

BITS = (8, 4, 2)


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


def sensitivity(vocabulary: int, runs: int, layers: int, bound: float | None) -> Claim:
    """The probe beside a loop over whole evaluations that gives the same numbers."""
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

    def passes() -> None:
        with torch.no_grad():
            for _ in range(len(units) * len(BITS)):
                model(batches[0]["input_ids"])

    def fused_passes() -> None:
        with fused_activations(model):
            passes()

    first, second = whole(), suffix()
    assert all(math.isclose(first[key], second[key], rel_tol=1e-3) for key in first), (
        "the same numbers, but for rounding"
    )
    works = {"whole": whole, "suffix": suffix, "passes": passes, "fused": fused_passes}
    times = interleaved(works, runs, time.thread_time)
    limits = [
        (full - bare + suffix_share(layers) * fused) / full
        for full, bare, fused in zip(times["whole"], times["passes"], times["fused"], strict=True)
    ]
    return Claim(
        f"layer sensitivity / full re-evaluation, {layers} layers x {len(BITS)} bits, {vocabulary:,} tokens",
        [own / full for own, full in zip(times["suffix"], times["whole"], strict=True)],
        bound=bound, limit=sorted(limits)[len(limits) // 2],
    )  # fmt: skip


def suffix_share(layers: int, mlp: float = 8 / 12) -> float:
    """Of the work of blocks: what follows the attention, or the MLP with so much of a block's work, of each of them."""
    return sum(layers - n + layers - n - 1 + mlp for n in range(layers)) / (2 * layers**2)


def metrics(vocabulary: int, runs: int, layers: int) -> Claim:
    """The probe beside a bare pass."""
    model = gpt2(vocabulary, layers=layers)
    batches = [tokens(vocabulary, 8, 128) for _ in range(8)]  # a quarter of what an audit looks at by default

    def bare() -> float:
        total = 0.0
        with torch.no_grad():
            for batch in batches:
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                total += float(F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()))
        return total

    def probe() -> None:
        AuditSession(model).measure(Performance(), batches)

    times = interleaved({"bare": bare, "probe": probe}, runs, time.thread_time)
    ratios = [own / alone for own, alone in zip(times["probe"], times["bare"], strict=True)]
    return Claim(f"basic metrics / one pass, {vocabulary:,} tokens", ratios, bound=1.1, limit=1.0)


def whole_audits(runs: int, *, quick: bool) -> list[Claim]:
    """Wall and processor seconds of the whole audit, and wall seconds of its probes, each run in a new folder."""
    model = gpt2(1000, layers=2, width=64) if quick else gpt2(1000, layers=12, width=256)
    threads = 1 if quick else 2
    wall, processor, probes = [], [], []
    with tempfile.TemporaryDirectory() as home:
        bpe_tokenizer([row["text"] for row in builtin_rows("train")], 1000).save_pretrained(Path(home) / "model")
        model.save_pretrained(Path(home) / "model")
        for run in range(runs):
            folder = Path(home) / f"results_{run}"
            command = [
                sys.executable, "-m", "learnscope.cli", "audit", "--model_path", str(Path(home) / "model"),
                "--output_dir", str(folder), "--data_split", "validation", "--threads", str(threads),
                *(["--examples", "16"] if quick else []),
            ]  # fmt: skip
            started, used = time.perf_counter(), _of_children()
            subprocess.run(command, check=True, capture_output=True)
            wall.append(time.perf_counter() - started)
            processor.append(_of_children() - used)
            assert len(list((folder / "plots").glob("*.png"))) == 9
            records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
            probes.append({record["probe"]: float(record["cost"]) for record in records})
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    name = f"whole audit of {millions:.1f} M parameters"
    each = {probe: [run[probe] for run in probes] for probe in probes[0]}
    return [
        Claim(name, wall, bound=None if quick else 90.0, unit="s", threads=threads),
        Claim(f"{name}, processor", processor, unit="s", threads=threads),
        *(Claim(f"{name}: {probe}", seconds, unit="s", threads=threads) for probe, seconds in each.items()),
    ]


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it runs; bounds are not judged")
    parser.add_argument("--runs", type=int, default=5, help="of each claim (default: 5; a whole audit takes a minute)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        show([sensitivity(1000, 1, 2, None), metrics(1000, 1, 2), *whole_audits(1, quick=True)])
        return True
    claims = [sensitivity(1000, options.runs, 12, 0.45), metrics(1000, options.runs, 12)]
    claims += whole_audits(options.runs, quick=False)
    held = show(claims)
    keep("audit", claims)
    return held


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
