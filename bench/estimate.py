"""How far the estimate that an audit prints before it starts is from what it takes.

    python bench/estimate.py [--runs N] [--quick]

Several small models, each with all its parts: the estimate from two timed passes, and then the seconds of the parts in
the same process, both of the processor on one thread, so that other work on the machine does not count. The figure is
max(estimate / taken, taken / estimate) of all parts together; the bound is 2.
Parts by themselves are shown without a bound. Exits with 1 if the bound is missed.
"""

import argparse
import sys
import time
from typing import Any

import torch
from tools.claims import Claim, keep, show
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from learnscope.posttrain import ModelAnalyzer
from learnscope.posttrain.analyzer import PARTS


def models(*, quick: bool) -> dict[str, Any]:
    """By name: a small one, many layers, and a large vocabulary."""
    torch.manual_seed(0)
    small: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "n_positions": 128}
    gpt2: Any = GPT2LMHeadModel
    made = {"GPT-2, 2 layers": gpt2(GPT2Config(vocab_size=500, n_embd=64, n_layer=2, n_head=2, **small))}
    if not quick:
        made["GPT-2, 8 layers"] = gpt2(GPT2Config(vocab_size=2000, n_embd=128, n_layer=8, n_head=4, **small))
        llama: Any = LlamaForCausalLM
        config = LlamaConfig(
            vocab_size=8000, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
            max_position_embeddings=128,
        )  # fmt: skip
        made["Llama, 8,000 tokens"] = llama(config)
    return {name: model.eval() for name, model in made.items()}


def factors(model: Any, *, quick: bool) -> dict[str, float]:
    """How many times too long or too short the estimate was, by part and for `all`; nothing is cached."""
    ids = torch.randint(1, model.config.vocab_size, (64, 64), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": part, "attention_mask": torch.ones_like(part), "labels": part} for part in ids.split(8)]
    analyzer = ModelAnalyzer(model, progress=False, quick=quick)
    batches = analyzer.planner.fixed(analyzer.data(data))
    planned, _ = analyzer.planner.estimates(batches, PARTS, time.process_time)
    taken = {}
    for part in PARTS:
        began = time.process_time()
        getattr(analyzer, f"analyze_{part}")(batches)
        taken[part] = time.process_time() - began
    off = {part: planned.seconds[part] / taken[part] for part in PARTS}
    off["all"] = planned.total / sum(taken.values())
    return {part: max(ratio, 1 / ratio) for part, ratio in off.items()}


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small model once; bounds are not judged")
    parser.add_argument("--runs", type=int, default=5, help="of each model (default: 5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    claims = []
    for name, model in models(quick=options.quick).items():
        runs = [factors(model, quick=options.quick) for _ in range(1 if options.quick else options.runs)]
        for part in ("all", *PARTS):
            bound = 2.0 if part == "all" and not options.quick else None
            title = f"estimate beside what it took, {name}" + ("" if part == "all" else f": {part.replace('_', ' ')}")
            claims.append(Claim(title, [run[part] for run in runs], bound=bound, limit=1.0, unit="times",
                                threads=torch.get_num_threads()))  # fmt: skip
    held = show(claims)
    if not options.quick:
        keep("estimate", claims)
    return held


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
