"""What the model is given, against NumPy in float64, and row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from learnscope.core.forwards import described
from learnscope.tensor.features.inputs import equal_by_chance, row_hashes
from probes.reference import array, at_scope, tiny_gpt2, tokens, values


def of(run: ls.Run, name: str, **labels: Any) -> float:
    found = values(run, "Inputs", name, **labels)
    assert found, name
    return found[-1]


def status(run: ls.Run, name: str) -> str:
    return str(next(row.status for record in run.records() for row in record.rows() if row.name == name))


def watched(model: nn.Module, *steps: Any, **options: Any) -> ls.Run:
    """One training step for each entry: the arguments of a forward, or a list of those of micro-batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.Inputs(every=1)], strict=True, **options) as w:
        optimizer.step()  # the first step is not looked at
        for step in steps:
            for given in step if isinstance(step, list) else [step]:
                outputs = model(**given) if isinstance(given, dict) else model(given)
                getattr(outputs, "logits", outputs).square().mean().backward()
            optimizer.step()
    return w.run


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_scale_of_the_inputs_and_of_the_outputs(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).to(dtype)
    x = (1e3 + 2 * torch.randn(16, 5)).to(dtype)
    run, given = watched(model, x), array(x)
    near = pytest.approx
    assert of(run, "input_mean", data="train") == near(given.mean(), rel=1e-12)
    assert of(run, "input_std", data="train") == near(given.std(), rel=1e-9)
    assert of(run, "input_max", data="train") == np.abs(given).max()
    assert of(run, "first_output_rms") == near(np.sqrt((array(model[0](x)) ** 2).mean()), rel=1e-12)
    assert of(run, "output_rms") == near(np.sqrt((array(model(x)) ** 2).mean()), rel=1e-12)
    # in bfloat16 five columns have three values each: rows are equal by chance
    assert of(run, "rows") == (0 if dtype is torch.bfloat16 else 16)


def test_micro_batches_of_unequal_size_count_together() -> None:
    x = torch.randn(12, 4, dtype=torch.float64) + 5
    run = watched(nn.Linear(4, 2).double(), [x[:8], 10 * x[8:]])
    together = np.concatenate([array(x[:8]), 10 * array(x[8:])])
    assert of(run, "input_mean") == pytest.approx(together.mean(), rel=1e-12)
    assert of(run, "input_std") == pytest.approx(together.std(), rel=1e-12)
    assert of(run, "input_max") == np.abs(together).max()
    assert of(run, "rows") == 12


def test_numbers_that_are_not_finite_are_counted_and_left_out() -> None:
    x = torch.tensor([[1.0, np.nan], [3.0, np.inf]])
    run = watched(nn.Linear(2, 2), x)
    assert (of(run, "input_nonfinite"), of(run, "input_mean"), of(run, "input_std"), of(run, "input_max")) == (
        2,
        2,
        1,
        3,
    )
    run = watched(nn.Linear(2, 2), torch.full((3, 2), np.nan), torch.zeros(0, 2))
    assert status(run, "input_mean") == "no input is finite"
    assert "empty, constant" in status(run, "duplicate_share")


def test_tokens_by_keyword() -> None:
    ids = tokens(4, 12)
    run = watched(tiny_gpt2(), {"attention_mask": torch.ones_like(ids), "input_ids": ids})
    assert (of(run, "token_max"), of(run, "token_distinct")) == (ids.max(), len(np.unique(ids.numpy())))
    assert next(iter(run.records())).notes["input"] == "input_ids: text"
    assert "input_mean" not in set(run.frame().name)
    assert of(run, "first_output_rms") > 0


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_how_far_batch_norm_is_from_its_batch(kind: Any) -> None:
    norm = kind(6).double()
    norm.running_mean.copy_(torch.randn(6))
    norm.running_var.copy_(torch.rand(6) + 0.5)
    model = nn.ModuleDict({"a": norm})
    x = 3 * torch.randn((40, 6) if kind is nn.BatchNorm1d else (10, 6, 3, 3), dtype=torch.float64) + 1
    held, var = array(norm.running_mean), array(norm.running_var)
    run = watched(Wrapped(model), x)
    given = np.moveaxis(array(x), 1, -1).reshape(-1, 6)
    batch = given.var(0) + norm.eps
    drift = np.median(np.abs(held - given.mean(0)) / np.sqrt(batch))
    scale = np.median(np.abs(np.log((var + norm.eps) / batch)))
    assert at_scope(run, "Inputs", "norm_drift", "layer") == {"inner.a": pytest.approx(drift, rel=1e-9)}
    assert at_scope(run, "Inputs", "norm_scale_drift", "layer") == {"inner.a": pytest.approx(scale, rel=1e-9)}


class Wrapped(nn.Module):
    def __init__(self, inner: nn.ModuleDict) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner["a"](x)
        return out


# ---- content


def test_duplicates_within_a_step_and_constant_rows() -> None:
    x = torch.randn(8, 4)
    x[3], x[5], x[6:] = x[0], x[0], 0.0  # rows of zeros are padding: no content
    run = watched(nn.Linear(4, 2), [x[:4], x[4:]])
    assert of(run, "rows") == 6
    assert of(run, "duplicate_share") == pytest.approx(2 / 6)


def test_a_batch_that_is_given_again_in_a_step_has_no_duplicates() -> None:
    """As by the closure of LBFGS, or by sharpness-aware steps; a row that comes in two batches is one all the same."""
    x = torch.randn(8, 4)
    run = watched(nn.Linear(4, 2), [x[:4], x[:4], x[:4], x[3:]])
    assert of(run, "rows") == 9
    assert of(run, "duplicate_share") == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("columns", "values", "expected"), [(14, 2, True), (40, 2, False), (4, 3, True), (8, 90, False)]
)
def test_rows_of_few_columns_and_values_are_equal_by_chance(columns: int, values: int, expected: bool) -> None:
    """14 bits make 16,384 rows: of 500 examples in the holdout, 3 % of the training rows are one by chance."""
    x = torch.randint(values, (64, columns)).float()
    assert bool(equal_by_chance(x)) is expected
    run = watched(nn.Linear(columns, 2), x)
    assert ("by chance" in (status(run, "duplicate_share") or "")) is expected


def test_one_row_many_times_is_no_chance() -> None:
    """As of an array that is written into and stored again and again."""
    x = torch.randn(1, 4).expand(32, 4)
    assert not bool(equal_by_chance(x))
    assert of(watched(nn.Linear(4, 2), x), "duplicate_share") == pytest.approx(31 / 32)


@pytest.mark.parametrize("told", [True, False])
def test_duplicates_of_an_epoch_only_where_epochs_are_told(*, told: bool) -> None:
    """The second epoch has its first batch twice; without end_epoch, the same batch may be the next epoch's."""
    x = torch.randn(3, 8, 4)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.Inputs(every=1)], strict=True) as w:
        optimizer.step()
        for epoch in ([0, 1], [0, 1, 0], [2, 1]):
            for batch in epoch:
                model(x[batch]).sum().backward()
                optimizer.step()
            if told:
                w.end_epoch()
    assert values(w.run, "Inputs", "duplicate_share") == [0, 0, 0, 0, float(told), 0, 0]


def test_short_rows_of_whole_numbers_are_not_compared() -> None:
    run = watched(nn.Embedding(10, 2), torch.randint(10, (64, 2)))
    assert "by chance" in status(run, "duplicate_share")


def test_padding_does_not_make_texts_differ_or_alike() -> None:
    ids = torch.full((4, 12), 7)
    ids[0, :9] = ids[1, 3:] = torch.arange(10, 19)
    hashes, comparable = row_hashes(ids, padding=7)
    assert comparable.tolist() == [True, True, False, False]
    assert hashes[0] == hashes[1]
    assert row_hashes(ids)[0][0] != row_hashes(ids)[0][1]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.complex64]
)
def test_hashes_are_of_all_bits_and_of_their_places(dtype: torch.dtype) -> None:
    """One-hot rows differ in one place, in bits that end in many zeros."""
    rows = torch.eye(300).to(dtype)
    hashes, comparable = row_hashes(torch.cat([rows, rows]))
    assert comparable.all()
    assert len(set(hashes[:300].tolist())) == 300
    assert torch.equal(hashes[:300], hashes[300:])
    assert torch.equal(row_hashes(rows[5:6])[0], hashes[5:6])  # in any batch
    assert torch.equal(
        row_hashes(rows.reshape(300, 10, 30).transpose(1, 2).contiguous().transpose(1, 2))[0], hashes[:300]
    )


def test_many_rows_of_random_bits_have_different_hashes() -> None:
    rows = torch.randint(0, 2, (50_000, 64), generator=torch.Generator().manual_seed(0)).float()
    assert len(set(row_hashes(rows, most=2**30)[0].tolist())) == len(np.unique(rows.numpy(), axis=0))


def test_training_rows_that_are_in_the_holdout() -> None:
    x, y = torch.randn(40, 4), torch.randint(2, (40,))
    model = nn.Linear(4, 2)
    holdout = DataLoader(TensorDataset(x[:10] * 1.0, y[:10]), batch_size=4)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    run = watched(model, x[5:15], x[0:10], x[20:30], holdout=holdout)
    assert values(run, "Inputs", "holdout_overlap") == [0.5, 1, 0]
    assert values(run, "Inputs", "holdout_seen") == [0.5, 1, 1]
    assert of(run, "input_mean", data="holdout") == pytest.approx(array(x[:10]).mean(), rel=1e-12)
    assert len(values(run, "Inputs", "input_mean", data="holdout")) == 1
    changed = watched(nn.Linear(4, 2), x[:10] + 1e-3, holdout=holdout)
    assert of(changed, "holdout_overlap") == 0


def test_a_holdout_of_another_shape_or_that_cannot_be_read_is_said() -> None:
    x, y = torch.randn(10, 2, 2), torch.randint(2, (10,))
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    run = watched(model, x.flatten(1), holdout=[(x, y)])
    assert "cannot be equal" in status(run, "holdout_overlap")

    class Part(ls.Task):
        def logits(self, model: Any, batch: Any) -> Tensor:
            out: Tensor = model[1](batch[0].flatten(1))
            return out

        def targets(self, batch: Any) -> Tensor:
            out: Tensor = batch[1]
            return out

    run = watched(model, x, holdout=[(x, y)], task=Part())
    assert "calls a part" in next(iter(run.records())).notes["holdout"]
    assert "calls a part" in status(run, "holdout_overlap")


def test_texts_of_the_holdout() -> None:
    model, ids = tiny_gpt2(), tokens(12, 10)
    holdout = [{"input_ids": ids[:4], "labels": ids[:4]}]
    run = watched(model, {"input_ids": ids[2:10]}, holdout=holdout)
    assert of(run, "holdout_overlap") == 0.25
    assert of(run, "token_max", data="holdout") == ids[:4].max()


# ---- which forwards


def test_evaluations_and_forwards_of_probes_are_not_training() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    probes = [ls.Inputs(every=1), ls.Holdout(every=1)]
    with ls.watch(model, optimizer, probes=probes, strict=True, holdout=[(100 * x, y)]) as w:
        for _ in range(3):
            with torch.no_grad():
                model(50 * x)
            model.eval()
            model(70 * x)
            model.train()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert values(w.run, "Inputs", "input_max", data="train") == [float(x.abs().max())] * 2
    assert values(w.run, "Inputs", "rows") == [8, 8]


def test_a_model_of_which_only_parts_are_called_is_said_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Inputs(every=1)], strict=True) as w:
        for _ in range(3):
            model["a"](torch.randn(8, 4)).sum().backward()
            optimizer.step()
    assert [record.notes["unseen"][:20] for record in w.run.records()] == ["no training forward "]


@pytest.mark.parametrize("late", [False, True])
def test_compiled_models_are_compiled_once_and_what_is_not_seen_is_said(*, late: bool) -> None:
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    dynamo.utils.counters.clear()
    inner = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model: Any = inner if late else torch.compile(inner, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Inputs(every=lambda step: step in (1, 2, 4))], strict=True) as w:
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if late else model
        for _ in range(5):
            called(torch.randn(8, 4)).sum().backward()
            optimizer.step()
    assert dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not dynamo.utils.counters["graph_break"]
    if late:
        assert "compiled after" in next(iter(w.run.records())).notes["unseen"]
    else:
        assert values(w.run, "Inputs", "rows") == [8, 8, 8]
        assert status(w.run, "first_output_rms").startswith("not measured: compiled")
        assert of(w.run, "output_rms") > 0
    dynamo.reset()


def test_what_was_seen_survives_a_resume(tmp_path: Any) -> None:
    x, y = torch.randn(40, 4), torch.randint(2, (40,))
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options: dict[str, Any] = {"run": tmp_path / "run", "strict": True, "holdout": [(x[:10], y[:10])]}

    def step(rows: Tensor) -> None:
        model(rows).sum().backward()
        optimizer.step()

    with ls.watch(model, optimizer, probes=[ls.Inputs(every=1)], **options) as w:
        optimizer.step()
        step(x[:8])
        w.end_epoch()
        step(x[20:30])
        w.save_state()
    with ls.watch(model, optimizer, probes=[ls.Inputs(every=1)], resume=True, step=3, **options) as w:
        optimizer.step()
        step(x[25:35])
        step(x[8:10])
    assert values(w.run, "Inputs", "duplicate_share") == [0, 0, 0.5, 0]
    assert values(w.run, "Inputs", "holdout_seen") == [0.8, 0.8, 0.8, 1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_how_outputs_differ_from_example_to_example(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6)).to(dtype)
    x = torch.randn(20, 5).to(dtype)
    run, y = watched(model, x), array(model(x))
    centred = y - y.mean(0)
    unit = y / np.linalg.norm(y, axis=1, keepdims=True)
    cosines = [unit[i] @ unit[j] for i in range(20) for j in range(20) if i != j]
    values_of = np.linalg.eigvalsh(np.cov(y.T, bias=True))
    softmax = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    near = pytest.approx
    assert of(run, "output_spread") == near(np.sqrt((centred**2).mean()), rel=1e-9)
    assert of(run, "output_cosine") == near(np.mean(cosines), rel=1e-9)
    assert of(run, "output_rank") == near(values_of.sum() ** 2 / (values_of**2).sum(), rel=1e-9)
    assert of(run, "output_confidence") == near(softmax.max(1).mean(), rel=1e-9)
    assert of(run, "output_width") == 6


def test_outputs_that_cannot_be_compared() -> None:
    run = watched(nn.Linear(3, 4), torch.randn(1, 3))
    assert status(run, "output_spread") == "no output of several examples was seen"
    images = watched(nn.Conv2d(1, 2, 3, padding=1), torch.randn(6, 1, 4, 4))
    assert of(images, "output_width") == 32
    assert status(images, "output_confidence").startswith("the output of an example is not a short list")
    dead = nn.Linear(3, 4)
    nn.init.zeros_(dead.weight), nn.init.zeros_(dead.bias)
    assert status(watched(dead, torch.randn(5, 3)), "output_cosine").startswith("an output is 0")


def test_of_many_outputs_some_are_looked_at() -> None:
    torch.manual_seed(0)
    many = watched(nn.Linear(3, 400), torch.randn(1000, 3))
    assert of(many, "output_width") == 400
    assert 0 < of(many, "output_spread") < 3


def test_rows_that_came_at_an_earlier_step() -> None:
    """Of any epoch, looked-at steps alone; and how many different ones there were."""
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    batches = [rows[:4], rows[:4], rows[4:8], rows[6:10], torch.cat([rows[10:11], rows[10:11]])]
    with ls.watch(model, optimizer, probes=[ls.Inputs(every=1)], strict=True) as w:
        for batch in batches:
            model(batch).sum().backward()
            optimizer.step()
    frame = w.run.frame()
    shares, distinct = (frame[frame.name == name].value.tolist() for name in ("seen_share", "distinct_rows"))
    assert shares == [0, 0, 0.5, 0]  # the first step is not looked at
    assert distinct == [4, 8, 10, 11]


@pytest.mark.parametrize(("length", "comparable"), [(7, False), (9, True)])
@pytest.mark.parametrize("padding", [None, 0])
def test_short_texts_are_equal_by_chance(length: int, comparable: bool, padding: int | None) -> None:
    text = torch.zeros(2, 40, dtype=torch.int64)
    text[0, :length] = 1 + torch.arange(length)
    text[1, -length:] = 1 + torch.arange(length)
    assert described("0", text, padding).comparable.tolist() == [comparable] * 2  # type: ignore[union-attr]
