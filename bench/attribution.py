"""What attributing a transition to examples costs, beside two backward passes an example.

    python bench/attribution.py [--quick] [--runs 5] [--threads 1]

The 1,797 digits and an MLP 64-256-256-10 before and after some training. Transition scores take turns with the plain
way: for each example a forward and a backward of batch 1 with either model, and the cosine of the two gradients. The
scores are given the data set, and read it themselves. Written-out gradients, which models other than linear layers get,
are timed too, without a bound. Memory is the peak beyond what the process holds before, with 64 MiB asked for.
"""

from __future__ import annotations

import argparse
import copy

import torch
from sklearn.datasets import load_digits
from tools.claims import Claim, keep, show
from tools.figures import in_fresh_process, interleaved, peak_beyond_now
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from learnscope.model.examples.attribution import Transition, transition_scores
from learnscope.model.examples.per_example import per_example_gradients
from learnscope.task import TupleTask


def digits(quick: bool) -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    size = 64 if quick else len(y)
    return torch.from_numpy(x[:size]).float() / 16, torch.from_numpy(y[:size]).long()


def trained(x: Tensor, y: Tensor) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return before, model


def one_by_one(before: nn.Module, after: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The cosines, as one would write it down."""
    found = []
    for i in range(len(y)):
        rows = []
        for model in (before, after):
            model.zero_grad()
            F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            rows.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
        found.append(F.cosine_similarity(rows[0], rows[1], dim=0))
    return torch.stack(found)


def written_out(model: nn.Module, x: Tensor, y: Tensor) -> int:
    return sum(len(c.losses) for c in per_example_gradients(model, TupleTask(), [(x, y)], max_bytes=64 << 20))


def cost(quick: bool, runs: int, threads: int) -> list[Claim]:
    x, y = digits(quick)
    before, after = trained(x, y)
    data = TensorDataset(x, y)
    ours: list[Transition] = []
    plain: list[Tensor] = []
    functions = {
        "plain": lambda: plain.append(one_by_one(before, after, x, y)),
        "ours": lambda: ours.append(transition_scores(before, after, None, data)),
        "written": lambda: [written_out(model, x, y) for model in (before, after)],
    }
    times = interleaved(functions, runs)
    ratios = {
        name: [spent / base for spent, base in zip(times[name], times["plain"], strict=True)] for name in functions
    }
    differences = [float((found.cosine - plain[0]).abs().max()) for found in ours[1:]]
    return [
        Claim("transition scores / two backwards an example", ratios["ours"], bound=0.1, threads=threads),
        Claim("gradients written out / two backwards an example", ratios["written"], threads=threads),
        Claim("largest difference of a cosine", differences, bound=1e-5, unit="", threads=threads),
    ]


def memory(quick: bool) -> float:
    x, y = digits(quick)
    model, _ = trained(x, y)
    written_out(model, x[:4], y[:4])
    return peak_beyond_now(lambda: written_out(model, x, y))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few examples: does it run, not how fast it is")
    parser.add_argument("--threads", type=int, default=1, help="a batch of 1 gains nothing from more")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        print(memory(options.quick))
        return 0
    runs = 1 if options.quick else options.runs
    claims = cost(options.quick, runs, options.threads)
    peaks = [in_fresh_process(__file__, "--threads", str(options.threads)) for _ in range(runs)]
    claims.append(Claim("written out, beyond the models", peaks, bound=64.0, unit="MiB", threads=options.threads))
    held = show(claims)
    if options.quick:
        return 0
    keep("attribution", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
