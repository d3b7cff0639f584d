"""Parameters and batches of odd kinds under the default probes: training goes on as it would unwatched, bit for bit,
or the session is refused on opening by the name of the parameter."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import learnscope as ls

STEPS = 3
QUICK, LONG = 60, 2000


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


ODD: dict[str, Callable[[], nn.Parameter]] = {
    "0-d": lambda: nn.Parameter(torch.tensor(0.5)),
    "empty": lambda: nn.Parameter(torch.zeros(0, 3)),
    "non-contiguous": lambda: nn.Parameter(normal(4, 6).T),
    "strided": lambda: nn.Parameter(normal(8, 8)[::2, 1::3]),
    "expanded": lambda: nn.Parameter(normal(1, 3).expand(4, 3), requires_grad=False),
    "complex": lambda: nn.Parameter(normal(3, 3, dtype=torch.complex64)),
    "complex double": lambda: nn.Parameter(normal(5, dtype=torch.complex128)),
    "double": lambda: nn.Parameter(normal(3, 3, dtype=torch.float64)),
    "half": lambda: nn.Parameter(normal(3, 3).half()),
    "bfloat16": lambda: nn.Parameter(normal(600).bfloat16()),
    "float8": lambda: nn.Parameter(normal(4, 4).to(torch.float8_e4m3fn), requires_grad=False),
    "integers": lambda: nn.Parameter(torch.arange(6), requires_grad=False),
    "truth values": lambda: nn.Parameter(torch.ones(4, dtype=torch.bool), requires_grad=False),
    "sparse": lambda: nn.Parameter(torch.eye(4).to_sparse()),
    "sparse rows": lambda: nn.Parameter(torch.eye(4).to_sparse_csr(), requires_grad=False),
    "meta": lambda: nn.Parameter(torch.empty(3, 3, device="meta"), requires_grad=False),
    "NaN": lambda: nn.Parameter(torch.tensor([1.0, float("nan")])),
    "Inf": lambda: nn.Parameter(torch.tensor([1.0, float("-inf")])),
    "huge": lambda: nn.Parameter(torch.full((3,), 3e38)),
    "subnormal": lambda: nn.Parameter(torch.full((3,), 1e-45)),
    "frozen": lambda: nn.Parameter(normal(3), requires_grad=False),
}
BATCHES: dict[str, Callable[[], Tensor]] = {
    "usual": lambda: normal(8, 6),
    "one": lambda: normal(1, 6),
    "none": lambda: normal(0, 6),
    "non-contiguous": lambda: normal(6, 8).T,
    "NaN": lambda: torch.full((4, 6), float("nan")),
    "Inf": lambda: torch.full((4, 6), float("inf")),
    "huge": lambda: torch.full((4, 6), 1e38),
    "sparse": lambda: normal(8, 6).to_sparse(),
    "integers": lambda: torch.ones(4, 6, dtype=torch.long),
    "complex": lambda: normal(4, 6, dtype=torch.complex64),
}


class Net(nn.Module):
    """A linear layer, and parameters of odd kinds of which those that can be trained are in the loss."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.usual = nn.Linear(6, 3)
        self.odd = nn.ParameterDict({f"p{number}": ODD[kind]() for number, kind in enumerate(kinds)})

    def forward(self, x: Tensor) -> Tensor:
        dense = x.to_dense() if x.is_sparse else x
        loss = self.usual(dense.abs() if dense.is_complex() else dense.float()).square().mean()
        for p in self.odd.values():
            if p.requires_grad:
                entries = torch.sparse.sum(p).reshape(1) if p.is_sparse else p
                loss = loss + (1e-3 * entries).abs().double().sum().float()
        return loss


def train(kinds: list[str], batch: str, *, watched: bool) -> tuple[list[Tensor], list[str]] | str:
    """The losses, gradients and weights with the failures of probes; or the message of a session that was refused."""
    model, x = Net(kinds), BATCHES[batch]()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    w = None
    if watched:
        probes = [ls.GradientFlow(every=1), ls.ParameterChange(every=2), ls.Loss(), ls.LearningRate(every=1)]
        try:
            w = ls.watch(model, optimizer, probes=probes)
        except (ValueError, TypeError) as error:
            return str(error)
    seen: list[Tensor] = []
    for _ in range(STEPS):
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
        if w is not None:
            w.log(loss=loss)
    seen += [p.detach() for p in model.parameters() if not p.is_meta]
    failures = []
    if w is not None:
        w.close()
        failures = [str(record.error) for record in w.run.records() if record.error]
    return seen, failures


def bits(tensor: Tensor) -> Any:
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return dense.shape, dense.dtype, dense.contiguous().flatten().view(torch.uint8).tolist() if dense.numel() else []


def check(kinds: list[str], batch: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, watched = train(kinds, batch, watched=False), train(kinds, batch, watched=True)
    assert not isinstance(plain, str)
    if isinstance(watched, str):
        assert "odd.p" in watched, f"a refusal names the parameter: {watched}"
        return "refused"
    assert list(map(bits, watched[0])) == list(map(bits, plain[0]))
    assert watched[1] == [], "every probe has measured, or said of each number why it is missing"
    return "watched"


@pytest.mark.parametrize("kind", ODD)
def test_each_kind_of_parameter_alone(kind: str) -> None:
    check([kind], "usual")


@pytest.mark.parametrize("batch", BATCHES)
def test_each_kind_of_batch(batch: str) -> None:
    assert check([], batch) == "watched"


KINDS = st.lists(st.sampled_from(sorted(ODD)), max_size=4)


@settings(max_examples=QUICK, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(kinds=KINDS, batch=st.sampled_from(sorted(BATCHES)))
def test_any_of_them_together(kinds: list[str], batch: str) -> None:
    check(kinds, batch)


@pytest.mark.soak
def test_many_more_of_them_together(record_property: Callable[[str, object], None]) -> None:
    ends: Counter[str] = Counter()

    @settings(max_examples=LONG, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(kinds=KINDS, batch=st.sampled_from(sorted(BATCHES)))
    def each(kinds: list[str], batch: str) -> None:
        ends[check(kinds, batch)] += 1

    each()
    record_property("combinations of odd tensors", ends.total())
    for end, number in sorted(ends.items()):
        record_property(end, number)
