"""Which examples are searched on and which are judged on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from learnscope.model.outputs.halves import all_count, halves, sides
from learnscope.model.outputs.reference import reference_outputs
from learnscope.task import DictTask, HuggingFaceTask, TupleTask
from probes.reference import tiny_gpt2


def test_halves_share_no_document() -> None:
    batch = {"x": torch.arange(14.0).reshape(7, 2), "y": torch.zeros(7), "id": torch.tensor([5, 5, 6, 7, 5, 8, 7])}
    named = {"x": torch.arange(4.0).reshape(2, 2), "y": torch.zeros(2), "id": ["é", "b"]}
    search, held = halves(DictTask(), [batch, named])
    assert torch.cat([b["id"] for b in search[:-1]]).tolist() == [5, 5, 7, 5, 7]
    assert torch.cat([b["id"] for b in held[:-1]]).tolist() == [6, 8]
    assert (search[-1]["id"], held[-1]["id"]) == (["é"], ["b"])
    plain, others = halves(TupleTask(), [(torch.arange(3), torch.arange(3)), (torch.arange(3, 5), torch.arange(3, 5))])
    assert [b[0].tolist() for b in plain] == [[0, 2], [4]]
    assert [b[0].tolist() for b in others] == [[1], [3]]


def test_only_so_many_examples_are_searched_on() -> None:
    """They are those that would be searched on anyway, and their parts stay together."""
    data = [(torch.arange(8), torch.arange(8)), (torch.arange(8, 11), torch.arange(8, 11))]
    assert sides(TupleTask(), data, first=2) == [[0, 1, 0, 1, 1, 1, 1, 1], [1, 1, 1]]
    assert sides(TupleTask(), data, first=100) == sides(TupleTask(), data)
    search, held = halves(TupleTask(), data, first=1)
    assert [part[0].tolist() for part in search] == [[0]]
    assert [part[0].tolist() for part in held] == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]
    parts = {"x": torch.zeros(7, 2), "y": torch.zeros(7), "id": torch.tensor([5, 5, 6, 7, 5, 8, 7])}
    assert sides(DictTask(), [parts], first=1) == [[0, 0, 1, 1, 0, 1, 1]]
    long = parts | {"id": torch.tensor([1, 1, 1, 2, 3, 3, 4])}
    assert sides(DictTask(), [long], first=4) == [[0, 0, 0, 1, 0, 0, 1]], "a document is not torn apart"
    assert sides(DictTask(), [long], first=3) == [[0, 0, 0, 1, 1, 1, 1]]
    # examples without a position that counts are in neither
    assert sides(TupleTask(), data[:1], counts=[1, 0, 1, 1, 1, 1, 0, 1], first=1) == [[0, None, 1, 1, 1, 1, None, 1]]


def text(labels: list[list[int]] | None, **masks: list[list[int]]) -> dict[str, Tensor]:
    ids = {"input_ids": torch.ones(2, 4, dtype=torch.int64)}
    labelled = {} if labels is None else {"labels": torch.tensor(labels)}
    return ids | labelled | {name: torch.tensor(mask) for name, mask in masks.items()}


ALL, NONE = [1, 1, 1, 1], [-100, -100, -100, -100]


@pytest.mark.parametrize(
    ("batch", "seen"),
    [
        (text(None), True),
        (text([ALL, ALL]), True),
        (text([ALL, [-100, -100, -100, 1]]), True),
        (text([ALL, [1, -100, -100, -100]]), False),  # the first token is never a target
        (text([ALL, NONE]), False),
        (text([ALL, ALL], attention_mask=[ALL, [1, 1, 0, 0]]), True),
        (text([ALL, ALL], attention_mask=[ALL, [1, 0, 0, 0]]), False),
        (text([ALL, [-100, -100, 1, 1]], attention_mask=[ALL, [1, 1, 0, 0]]), False),
        (text([ALL, ALL], attention_mask=[[1], [1]]), False),  # of another shape: nothing is known
        ({**text(None), "labels": torch.tensor([0, 1])}, False),
        ((torch.ones(2, 4), torch.ones(2)), False),
    ],
)
def test_that_all_texts_have_targets_is_seen_without_running_a_model(batch: Any, seen: bool) -> None:
    """Where it says yes, the positions that a pass finds agree; else a pass has to find out."""
    task = HuggingFaceTask()
    assert all_count(task, [batch]) == seen
    if seen:
        [found] = reference_outputs(tiny_gpt2(), task, [batch])
        assert found.outputs.example.bincount(minlength=2).min() > 0
    assert not all_count(task, [batch, text([NONE, ALL])])
    assert not all_count(TupleTask(), [batch])
