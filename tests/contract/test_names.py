"""What a probe emits is what it declares: over many loops, every name, kind and label, and nothing else."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from contract.loops import STEPS, half_precision, lora, run_loop, run_pending, with_adapters
from contract.probes import build, packaged
from learnscope.quantities import Quantity

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "AdapterSpectrum": [{"merged_update": True, "intruders": True}],
    "Attacks": [{}, {"at": "end", "every": 1}],
    "BitFrontier": [{"max_kl": 1.0}, {"max_bytes": 1 << 40}],
    "BitOptimum": [{}, {"max_kl": 1.0}],
    "ExampleLedger": [{"grand_every": 1, "keep_every": 1}],
    "GradientFlow": [{"stability": True, "per_tensor": True, "variance": True, "weights_every": 1}],
    "LossLandscape": [{"every": 3, "smallest": True}],
    "ParameterChange": [{}, {"absorbed": True}],
    "WeightSpectrum": [{"every": 3}, {"every": 3, "full": False, "leading": 2}],
}
"""With what a probe records most; for others the contract's options."""
Watched = Callable[[list[ls.Probe]], ls.Run]


def named(*names: str) -> list[ls.Probe]:
    return [build(name, **options) for name in names for options in OPTIONS.get(name, [{}])]


# ---- loops


def adapter_configurations() -> dict[str, Any]:
    import peft

    both = ["first", "last"]
    ranks: dict[str, Any] = {"init_r": 3, "target_r": 2, "tinit": 1, "tfinal": 1, "deltaT": 1, "total_step": 10}
    return {
        "adalora": peft.AdaLoraConfig(target_modules=both, **ranks),
        "vera": peft.VeraConfig(r=2, target_modules=["last"]),
        "ia3": peft.IA3Config(target_modules=both, feedforward_modules=["last"]),
        "layernorm": peft.LNTuningConfig(target_modules=["norm"]),
        "pissa": peft.LoraConfig(r=2, target_modules=both, init_lora_weights="pissa"),
    }


def over(model: nn.Module, batches: list[Any], loss: Callable[[Any], torch.Tensor], probes: list[ls.Probe]) -> ls.Run:
    """A plain loop over batches of any kind."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    data = {"holdout": batches, "train": batches, "test": batches}
    with ls.watch(model, optimizer, probes=probes, strict=True, **data) as w:
        for step in range(STEPS):
            batch = batches[step % len(batches)]
            optimizer.zero_grad()
            now = loss(batch)
            now.backward()
            optimizer.step()
            w.log(loss=now)
            w.batch(batch)
        w.end_epoch()
    return w.run


def tokens() -> ls.Run:
    """A language model: perplexities, attacks on its embeddings, sensitivities of its blocks."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    ids = torch.randint(1, 40, (3, 4, 8), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": rows, "labels": rows} for rows in ids]
    others = {"examples", "train_data", "test_data"}
    names = [name for name in packaged(adapters=False) if not getattr(ls, name).needs & others]
    return over(model, batches, lambda batch: model(**batch).loss, named(*names))


def padded() -> ls.Run:
    """Texts with padding that counts, and a token that does not, although it is one."""
    model = nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20))
    ids = torch.randint(1, 20, (3, 4, 12), generator=torch.Generator().manual_seed(0))
    ids[:, 0, 6:] = 0

    def loss(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]).mT, batch[1], ignore_index=3)

    return over(model, [(rows[:, :-1], rows[:, 1:]) for rows in ids], loss, named("Objective"))


def numbers() -> ls.Run:
    """A regression, with matrices large enough that only their leading singular values are computed."""
    model = nn.Sequential(nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 1))
    x = torch.randn(16, 600, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, x[:, :1].sum(1, keepdim=True)), batch_size=8)
    names = (
        "BatchStats",
        "Holdout",
        "Loss",
        "Objective",
        "Inputs",
        "WeightSpectrum",
        "Momentum",
        "ParameterChange",
        "Activations",
    )
    return over(model, list(loader), lambda batch: F.mse_loss(model(batch[0]), batch[1]), named(*names))


def series() -> ls.Run:
    """A forecast of the next value at every place."""

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.head(self.rnn(x)[0])
            return made

    model = Forecast()
    x = torch.randn(20, 9, 1, generator=torch.Generator().manual_seed(0))
    return over(model, [(x[:, :-1], x[:, 1:])], lambda b: F.mse_loss(model(b[0]), b[1]), named("Objective"))


def answers() -> ls.Run:
    """Yes or no, as probabilities."""
    model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
    g = torch.Generator().manual_seed(0)
    batch = torch.randn(16, 6, generator=g), torch.randint(2, (16, 1), generator=g).float()
    return over(model, [batch], lambda b: F.binary_cross_entropy(model(b[0]), b[1]), named("Objective"))


def signs() -> ls.Run:
    """Answers that are −1 and 1."""
    model = nn.Linear(6, 1)
    g = torch.Generator().manual_seed(0)
    batch = torch.randn(16, 6, generator=g), torch.randint(2, (16, 1), generator=g) * 2.0 - 1
    return over(model, [batch], lambda b: F.soft_margin_loss(model(b[0]), b[1]), named("Objective"))


def in_a_loop(loop: Callable[..., Any], *left_out: str, adapters: bool = False, **options: Any) -> ls.Run:
    run = loop(named(*(name for name in packaged(adapters=adapters) if name not in left_out)), **options).run
    assert isinstance(run, ls.Run)
    return run


def lost() -> ls.Run:
    """A loop that leaves out a step whose gradients are not finite."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=named("LostSteps"), strict=True) as w:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.full((8, 4), torch.inf if step == 2 else 1.0)).square().mean()
            loss.backward()
            w.log(loss=loss)
            if nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
                optimizer.step()
    return w.run


def replayed() -> ls.Run:
    """Checkpoints: gradients are those of a fixed batch."""
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))
    x, y = torch.randn(32, 10), torch.randint(4, (32,))
    checkpoints = {step: {k: v + 0.01 * step for k, v in model.state_dict().items()} for step in (1, 2, 3)}
    probes = named("GradientFlow", "ParameterChange")
    return ls.replay(checkpoints, model=model, probes=probes, holdout=[(x, y)], train=[(x, y)], strict=True)


def loops() -> dict[str, Callable[[], ls.Run]]:
    others = packaged(adapters=False)
    whole_batches = [name for name in others if "micro_batches" not in getattr(ls, name).needs | getattr(ls, name).uses]
    found: dict[str, Callable[[], ls.Run]] = {
        "adamw": partial(in_a_loop, run_loop, clip=0.5),
        "sgd": partial(in_a_loop, run_loop, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        "micro-batches": partial(in_a_loop, run_loop, *whole_batches, accumulate=3, sizes=True),
        "micro-batches and all probes": partial(in_a_loop, run_loop, accumulate=3, sizes=True),
        "micro-batches of unknown size": partial(in_a_loop, run_loop, accumulate=2),
        "backward pending": partial(in_a_loop, run_pending),
        "NaN gradients": lambda: in_a_loop(run_loop, *AFTER_NAN, nan_at=STEPS - 1),
        "half precision": partial(in_a_loop, run_loop, change=half_precision),
        "lora": partial(in_a_loop, run_loop, adapters=True, change=lora()),
        "dora": partial(in_a_loop, run_loop, *others, adapters=True, change=lora(use_dora=True)),
        "dora and all probes": partial(in_a_loop, run_loop, adapters=True, change=lora(use_dora=True)),
        "tokens": tokens,
        "padded": padded,
        "numbers": numbers,
        "series": series,
        "answers": answers,
        "signs": signs,
        "lost": lost,
        "replayed": replayed,
    }
    for family, configuration in adapter_configurations().items():
        change = with_adapters(configuration)
        found[family] = partial(in_a_loop, run_loop, *others, adapters=True, change=change)
    return found


ALIKE = (
    "sgd", "micro-batches of unknown size", "micro-batches and all probes", "backward pending", "half precision",
    "lora", "dora and all probes",
)  # fmt: skip
"""Loops in which nothing is emitted that no other emits: they are left to the soak."""
AFTER_NAN = ("LossLandscape", "Attacks", "BitRobustness", "BitFrontier", "BitOptimum")
"""They refuse to measure a model whose weights are NaN."""


# ---- what was emitted


@cache
def emitted(*alike: str) -> dict[str, dict[str, tuple[set[str], set[str]]]]:
    """Of each probe the names, with the kinds and the labels that they came with."""
    found: dict[str, dict[str, tuple[set[str], set[str]]]] = defaultdict(lambda: defaultdict(lambda: (set(), set())))
    for run in (loop() for name, loop in loops().items() if name not in ALIKE or name in alike):
        for record in run.records():
            probe = re.sub(r"_\d+$", "", record.probe)
            for table in record.tables:
                for column in table.columns:
                    kinds, labels = found[probe][column.name]
                    kinds.add(table.kind)
                    labels.update(column.labels)
    return found


@pytest.fixture(scope="module", autouse=True)
def _in_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("names"))
        yield


def declared(probe: str) -> list[Quantity]:
    quantities = getattr(ls, probe).quantities
    assert quantities is not None, f"{probe} declares no quantities"
    found: list[Quantity] = quantities.all()
    return found


def test_every_packaged_probe_declares_what_it_records() -> None:
    assert [name for name in packaged() if getattr(ls, name).quantities is None] == []


@pytest.mark.parametrize("probe", packaged())
def test_the_names_emitted_are_the_names_declared(probe: str) -> None:
    quantities = declared(probe)
    names = emitted()[probe]
    assert [name for name in names if getattr(ls, probe).quantities.of(name) is None] == [], "emitted, not declared"
    silent = [quantity.name for quantity in quantities if not any(quantity.names(name) for name in names)]
    assert silent == [], "declared, never emitted: a name that is gone, or a loop or an option is missing here"


def check_kinds_and_labels(probe: str, names: dict[str, tuple[set[str], set[str]]]) -> None:
    for name, (kinds, labels) in names.items():
        quantity = getattr(ls, probe).quantities.of(name)
        assert quantity is not None, (probe, name)
        assert kinds <= set(quantity.kinds), (probe, name)
        assert labels <= set(quantity.labels), (probe, name)


@pytest.mark.parametrize("probe", packaged())
def test_kinds_and_labels_are_among_the_declared(probe: str) -> None:
    declared(probe)
    check_kinds_and_labels(probe, emitted()[probe])


@pytest.mark.soak
@pytest.mark.parametrize("loop", ALIKE)
def test_no_other_loop_emits_more(loop: str) -> None:
    for probe, names in emitted(loop).items():
        check_kinds_and_labels(probe, names)


# ---- what is read

READERS = {"series", "grid", "rows", "labels_of"}
SOURCE = Path(ls.__file__).parent


def test_every_quantity_that_is_read_is_declared() -> None:
    """`series(run, Loss.loss)`, not `series(run, "Loss", "loss")`: a name in quotes may be misspelt."""
    quoted, called = [], re.compile(rf"\b({'|'.join(READERS)})\(")
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if called.search(text) else ():  # most call none of them
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            if name in READERS and any(
                isinstance(argument, ast.Constant) and isinstance(argument.value, str) for argument in node.args[:3]
            ):
                quoted.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)[:100]}")
    assert quoted == []
