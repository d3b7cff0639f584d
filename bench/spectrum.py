"""What tracking adapters costs: one `log_step` of each tracker, and a whole training with both.

    python bench/spectrum.py [--quick] [--runs 5]

Sixteen modules of 1024 × 1024 with float32 adapters of rank 16; the factors move between two measurements. Times are
medians of calls that take turns, in processor time of one thread, which waiting for other programs does not count. The
least that gradients take is one norm of each; the least that spectra take is the QR of all factors and the values of
the small cores. Beside the gradients stands a loop of `p.grad.norm().item()`; beside the spectra the singular values of
one product, counted sixteen times, as modules have nothing in common.

The training is that of `learnscope train` (28 modules at r = 8) with both trackers every 10 steps: the processor time
within the session's own calls (hooks of every step, measurements, records) beside all other, from the first step to the
last of the same run. Without making the model, checkpoints, figures, and the ranks that are tried once at the end.
Exits with 1 if a stated bound is missed.
"""

import argparse
import ctypes
import functools
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from tools.claims import Claim, keep, show
from tools.figures import interleaved
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import learnscope as ls
from learnscope.session.steps.ends import StepEnds
from learnscope.tensor.adapters.spectrum import Factors, decompose_factors
from learnscope.trackers import GradientFlowTracker, SpectralTracker
from learnscope.training import builtin
from learnscope.training.command import train
from learnscope.training.screen import Screen
from learnscope.training.settings.parser import parse

TRACKED = ("--enable_tracking", "--tracking_frequency", "10")


def core_alone(left: Tensor, right: Tensor) -> Tensor:
    """The least that must be done, for all modules at once: float64, both factorisations, the small core's values."""
    core = torch.linalg.qr(left.double(), mode="r").R @ torch.linalg.qr(right.double().mT, mode="r").R.mT
    values: Tensor = torch.linalg.svdvals(core)
    return values


def keep_memory() -> None:
    """Let glibc keep freed memory: to fetch it anew costs either side by chance up to as much as the work itself."""
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            allocator.mallopt(option, 1 << 30)


def adapted(modules: int, size: int, rank: int) -> nn.Module:
    import peft

    torch.manual_seed(0)
    layers = (
        nn.ModuleDict({"q_proj": nn.Linear(size, size), "v_proj": nn.Linear(size, size)}) for _ in range(modules // 2)
    )
    base = nn.ModuleDict({"layers": nn.ModuleList(layers)})
    model = peft.get_peft_model(base, peft.LoraConfig(r=rank, target_modules=["q_proj", "v_proj"]))  # type: ignore[arg-type]
    for name, p in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p, std=0.02)
        p.grad = torch.randn_like(p) if p.requires_grad else None
    return model


@torch.no_grad()
def move(model: nn.Module) -> None:
    for p in model.parameters():
        if p.requires_grad:
            p += 1e-3 * torch.randn_like(p)


def one_log_step(modules: int, size: int, rank: int, runs: int, repeats: int) -> list[Claim]:
    keep_memory()
    model = adapted(modules, size, rank)
    parts = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    lefts, rights = ([p.detach() for name, p in parts if part in name] for part in ("lora_B", "lora_A"))
    grads = [p.grad for _, p in parts if p.grad is not None]
    flow, spectra = GradientFlowTracker(model, log_frequency=1), SpectralTracker(model, log_frequency=1)
    steps = iter(range(1, 1_000_000))
    reading: dict[str, Callable[[], object]] = {
        "gradients": lambda: flow.log_step(next(steps)),
        "norms": lambda: torch.stack(torch._foreach_norm(grads)).tolist(),  # type: ignore[arg-type]
        "loop": lambda: {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None},
    }
    decomposing: dict[str, Callable[[], object]] = {
        "moving": lambda: move(model),
        "spectra": lambda: spectra.log_step(next(steps)),
        "core": lambda: core_alone(torch.stack(lefts), torch.stack(rights)),
    }
    found: dict[str, list[float]] = {name: [] for name in (*reading, *decomposing)}
    for _ in range(runs):  # apart: the spectra would leave nothing of the gradients in the caches
        for calls, often in ((reading, 10 * repeats), (decomposing, repeats)):
            for name, times in interleaved(calls, often, time.thread_time).items():
                found[name].append(statistics.median(times) * 1e3)
    work = {"product": lambda: torch.linalg.svdvals(2.0 * (lefts[0] @ rights[0]))}
    products = [t * 1e3 * modules for t in interleaved(work, runs, time.thread_time)["product"]]
    limits = {name: statistics.median(found[name]) for name in ("norms", "core")}
    return [
        Claim(
            f"adapter gradients, {len(grads)} tensors, one log_step", found["gradients"], bound=0.30,
            limit=limits["norms"], unit="ms", peer="a loop of p.grad.norm().item()", peer_runs=found["loop"],
        ),
        Claim(
            f"adapter spectra and their drift, {modules} adapters of {size}², r {rank}, one log_step", found["spectra"],
            bound=8.0, limit=limits["core"], unit="ms", peer="singular values of the products", peer_runs=products,
        ),
        Claim("adapter spectra, largest relative error", accuracy(lefts, rights), bound=1e-9, unit=""),
    ]  # fmt: skip


def accuracy(lefts: list[Tensor], rights: list[Tensor]) -> list[float]:
    """The largest relative error of the singular values of some modules, against those of the product."""
    errors = []
    for left, right in list(zip(lefts, rights, strict=True))[:5]:
        truth = torch.linalg.svdvals(2.0 * (left.double() @ right.double()))[: left.shape[1]]
        found = decompose_factors([Factors(left, right, 2.0)])[0].values
        errors.append(float(((found - truth).abs() / truth).max()))
    return errors


TRACKING = (
    (StepEnds, StepEnds._on_start), (StepEnds, StepEnds._finish), (StepEnds, StepEnds._on_clip),
    (ls.Watch, ls.Watch.log),
)  # fmt: skip
"""Where tracking spends its time; a name that is gone fails when this file is imported."""


def trained(base: Path, folder: Path, steps: int, *flags: str) -> tuple[float, float]:
    """Processor seconds from the end of the first step to that of the last, and those of them that tracking took."""
    marks: list[tuple[float, float]] = []
    inside = [0.0]
    config = parse([
        "--config.model.model_name_or_path", str(base), "--config.model.attn_implementation", "sdpa",
        "--config.training.output_dir", str(folder), "--config.training.max_steps", str(steps),
        "--config.training.save_steps", "0", *flags,
    ])  # fmt: skip

    def mark(*_: Any) -> None:
        marks.append((time.thread_time(), inside[0]))

    hook: Any = register_optimizer_step_post_hook(mark)
    with ExitStack() as stack:
        stack.callback(hook.remove)
        for owner, method in TRACKING:
            stack.enter_context(mock.patch.object(owner, method.__name__, timed(method, inside)))
        train(config, Screen(Console(file=io.StringIO())))
    return marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]


def timed(method: Callable[..., Any], inside: list[float]) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            inside[0] += time.thread_time() - start

    return counted


def tracking(steps: int, runs: int) -> list[Claim]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builtin.make_base_model(folder / "base")
        seconds = [trained(folder / "base", folder / str(run), steps, *TRACKED) for run in range(runs)]
    ratios = [total / (total - inside) for total, inside in seconds]
    return [Claim("training with both trackers every 10 steps / without", ratios, bound=1.02, limit=1.0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one run: does it run, not how fast it is")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    claims = one_log_step(4, 128, 8, 1, 3) if options.quick else one_log_step(16, 1024, 16, options.runs, 21)
    builtin.STEPS = 3 if options.quick else builtin.STEPS
    claims += tracking(20, 1) if options.quick else tracking(100, options.runs)
    held = show(claims)
    if options.quick:
        return 0
    keep("spectrum", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
