"""Digests of models, data and tasks: equal for equal content, different for any change."""

from __future__ import annotations

import copy

import torch
from torch import nn

from learnscope.model.weights.content import data_content, model_content, task_content
from learnscope.task import HuggingFaceTask, TupleTask


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 2))


def test_a_copy_is_the_same_and_every_change_is_another() -> None:
    one = model()
    assert model_content(copy.deepcopy(one)) == model_content(one)
    one.train(False)
    assert model_content(one) == model_content(model()), "the mode is set by whoever looks"
    changed = []
    for place in range(4):
        other = model()
        with torch.no_grad():
            if place == 0:
                other[0].weight[0, 0] = torch.nextafter(other[0].weight[0, 0], torch.tensor(9.0))
            elif place == 1:
                other[1].running_mean[2] += 1
            elif place == 2:
                other[2].p = 0.2
            else:
                other.double()
        changed.append(model_content(other))
    assert len({*changed, model_content(one)}) == 5


def test_data_by_their_bits_and_their_places() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    same = [(x, torch.tensor([0, 1]))]
    assert data_content(same) == data_content([[x.clone(), torch.tensor([0, 1])]])
    others = [
        [(x.reshape(3, 2), torch.tensor([0, 1]))], [(x, torch.tensor([1, 0]))], [(x.double(), torch.tensor([0, 1]))],
        [{"x": x, "y": torch.tensor([0, 1])}], [*same, *same], [(x.to(torch.bfloat16), torch.tensor([0, 1]))],
    ]  # fmt: skip
    assert len({data_content(batches) for batches in [same, *others]}) == 7
    sparse = x.to_sparse()
    assert data_content([sparse]) == data_content([sparse.clone()]) != data_content([x[:1].to_sparse()])


def test_tasks_by_class_and_options() -> None:
    assert task_content(HuggingFaceTask()) == task_content(HuggingFaceTask())
    told = {task_content(task) for task in (None, TupleTask(), HuggingFaceTask(), HuggingFaceTask(shift=True))}
    assert len(told) == 4
