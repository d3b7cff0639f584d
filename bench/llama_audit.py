"""What `learnscope audit` of a Llama of 15 million parameters takes, and how far its printed estimate is from that.

    python bench/llama_audit.py [--runs N] [--default_runs N] [--quick]

The shape of the smallest Llama that is widely used: 32,000 tokens, 288 wide, six layers, tied. It is trained for a few
steps on the built-in text, so that its layers differ, and audited on 64 texts of 128 tokens that it has not seen, by
the command as a process of its own on one thread, with `--quick` and without. Seconds are those of the processor, of
the process and all that it starts, imports and figures included. The estimate is the line that is printed before the
first part, from passes that are timed by the processor's clock too, so that other work on the machine does not count;
its factor is max(estimate / taken, taken / estimate), of the whole process. Shown without a bound: half the width of
the 95 % interval of the perplexity's change at uniform 4 bits. Exits with 1 if a bound is missed.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tools.claims import Claim, keep, show
from transformers import LlamaConfig, LlamaForCausalLM

from learnscope.posttrain.builtin import bpe_tokenizer
from learnscope.sources import builtin_rows

EXAMPLES, LENGTH = 64, 128
SECONDS = {"quick": 60.0, "default": 180.0}
COMMAND = """
import sys, time
from functools import partialmethod
from learnscope.cli import main
from learnscope.posttrain.planning.planner import Planner
Planner.estimates = partialmethod(Planner.estimates, clock=time.process_time)
sys.exit(main(sys.argv[1:]))
"""
_SAID = re.compile(r"about ([\d.]+) (s|min|h), from two timed passes")
_IN_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def prepare(home: Path, *, quick: bool) -> int:
    """Write the model and its texts; returns how many parameters it has."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4000 if quick else 32000, hidden_size=64 if quick else 288, intermediate_size=768,
        num_hidden_layers=2 if quick else 6, num_attention_heads=2 if quick else 6, max_position_embeddings=256,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    texts = {split: [row["text"] for row in builtin_rows(split)] for split in ("train", "validation")}
    tokenizer = bpe_tokenizer(texts["train"], 4000)
    streams = {
        split: torch.tensor([token for text in rows for token in tokenizer(text)["input_ids"]])
        for split, rows in texts.items()
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3 if quick else 10):
        starts = torch.randint(len(streams["train"]) - LENGTH, (4,)).tolist()
        ids = torch.stack([streams["train"][start : start + LENGTH] for start in starts])
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(home / "model")
    tokenizer.save_pretrained(home / "model")
    rows = streams["validation"][: EXAMPLES * LENGTH].view(EXAMPLES, LENGTH).tolist()
    (home / "texts.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return sum(parameter.numel() for parameter in model.parameters())


def audit(home: Path, effort: str) -> dict[str, float]:
    """One audit in a new folder: seconds of the processor, the estimate's factor, and the width of an interval."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        command = [
            sys.executable, "-c", COMMAND, "audit", str(home / "model"), "--data", str(home / "texts.jsonl"),
            "--output_dir", folder, "--threads", "1", "--no_cache", *(["--quick"] if effort == "quick" else []),
        ]  # fmt: skip
        before = _of_children()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **threads})
        seconds = _of_children() - before
        body = json.loads((Path(folder) / "analysis_results.json").read_text())
    said = _SAID.search(done.stdout)
    assert said is not None, done.stdout
    ratio = float(said[1]) * _IN_SECONDS[said[2]] / seconds
    [even] = [row for row in body["bit_widths"]["optimum"]["rows"] if row["scope"] == "uniform_4"]
    width = (even["values"]["change_high"] - even["values"]["change_low"]) / 2
    print(f"{effort}: {seconds:.1f} s, said {said[0]}, interval ±{width:.4f}", flush=True)
    return {"seconds": seconds, "factor": max(ratio, 1 / ratio), "width": width}


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model once; bounds are not judged")
    parser.add_argument("--runs", type=int, default=5, help="with --quick (default: 5)")
    parser.add_argument("--default_runs", type=int, default=5, help="without; fewer than 5 are not judged (default: 5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory() as home:
        millions = prepare(Path(home), quick=options.quick) / 1e6
        for effort, count in (("quick", options.runs), ("default", options.default_runs)):
            runs = [audit(Path(home), effort) for _ in range(1 if options.quick else count)]
            claims += of_effort(effort, millions, runs)
            if not options.quick:
                keep("llama_audit", claims)  # also of one that is broken off
    return show(claims)


def of_effort(effort: str, millions: float, runs: list[dict[str, float]]) -> list[Claim]:
    """Fewer than five runs have no bound, and a note of it."""
    of, judged = f"{effort} audit of a Llama of {millions:.1f} M, {EXAMPLES} x {LENGTH} tokens", len(runs) >= 5
    most, factor = (SECONDS[effort], 2.0) if judged else (None, None)
    notes = ["", ""] if judged else [f"too few runs to be judged; the goal is {goal}" for goal in (SECONDS[effort], 2)]
    seconds, factors, widths = ([run[name] for run in runs] for name in ("seconds", "factor", "width"))
    return [
        Claim(f"{of}, processor", seconds, bound=most, unit="s", note=notes[0]),
        Claim(f"{of}: estimate beside what it took", factors, bound=factor, limit=1.0, unit="times", note=notes[1]),
        Claim(f"{of}: half an interval of the perplexity's change at 4 bits", widths, unit="share"),
    ]


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
