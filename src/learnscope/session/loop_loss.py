"""Which loss a training loop computes, from what it hands over in its first steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.session.engine import Engine
from learnscope.task import PairTask, Task
from learnscope.task.graph import loss_of_graph
from learnscope.task.losses import BINARY, CROSS_ENTROPY, Certainty, LossFunction, agreeing, named
from learnscope.task.shapes import flatten_positions
from learnscope.task.trial import with_loss

TRIES = 3
"""Batches whose outputs the loop hands over with their loss, after which it is said that no known loss agrees."""
GRAPHS = 20
"""Logged losses whose graphs are looked at."""


class LoopLoss:
    """Looks for the loop's loss until it is known: in the graph of what it logs, and among losses of equal value.

    The value is compared on outputs that the loop hands over (`w.examples`), or on a batch (`w.batch`) that is run once
    more under the guard. The latter gives the loop's own number only if it comes before the step and nothing is drawn
    at random, so that it may confirm a loss but not rule out all.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._subject = engine, engine.subject
        self._outputs: tuple[Tensor, Tensor, bool] | None = None
        self._logged: float | Tensor | None = None
        self._disagreed = self._batches = self._graphs = 0

    @property
    def _open(self) -> LossFunction | None:
        """The loss that is not known to be the loop's, if the session has data to evaluate on."""
        task = self._subject.task
        chosen = None if task is None or self._subject.holdout is None else task.chosen_loss
        return None if chosen is None or chosen.certainty == "known" else chosen

    def logged(self, loss: Any) -> None:
        """The loop logs its loss."""
        chosen = self._open
        if chosen is None or loss is None or (isinstance(loss, Tensor) and loss.numel() != 1):
            return
        if isinstance(loss, Tensor) and loss.grad_fn is not None and self._graphs < GRAPHS:
            self._graphs += 1
            if (found := loss_of_graph(loss)) is not None:
                self._read_off(chosen, *found)
                return
        self._logged = loss.detach() if isinstance(loss, Tensor) else loss
        self._compare(in_order=True)

    def examples(self, logits: Tensor, targets: Tensor) -> None:
        """The loop hands over its own outputs."""
        if self._open is not None and self._disagreed < TRIES:
            flat, kept, keep, _ = flatten_positions(logits.detach(), targets, None)
            assert kept is not None
            self._outputs = (flat, kept, True) if keep is None else (flat[keep], kept[keep], True)
            self._compare(in_order=False)

    def batch(self, batch: Any) -> None:
        """The loop hands over a batch: the first few are run once more."""
        model, task = self._subject.model, self._subject.task
        if self._open is None or task is None or self._batches >= TRIES:
            return
        self._batches += 1
        with torch.no_grad(), guard(model, training=model.training):
            positions = task.positions(model, task.to(batch, model_device(model)))
        if positions.targets is not None:
            logits = positions.logits if positions.rows is None else positions.logits[positions.rows]
            self._outputs = logits, positions.targets, False
            self._compare(in_order=False)

    def _read_off(self, chosen: LossFunction, name: str, exact: bool) -> None:
        """The graph of the loss says how it was computed."""
        if exact:
            self._found(chosen, name, "as the loop computes it")
        elif chosen.certainty == "usual" or chosen.name != name:
            self._found(chosen, name, "of which the loop logs a multiple, a sum or a weighted mean", "guessed")

    def _found(self, chosen: LossFunction, name: str, why: str, certainty: Certainty = "known") -> None:
        """The loop's loss is this one."""
        if chosen.name == CROSS_ENTROPY and name == BINARY and isinstance(self._subject.task, PairTask):
            name = CROSS_ENTROPY  # of two classes, the same number
        if chosen.name == CROSS_ENTROPY != name:
            self._set(replace(chosen, certainty="guessed", why=f"the loop's loss is a {name}, which classes have not"))
        else:
            self._set(named(name, certainty, f"{name}, {why}"))

    def _compare(self, *, in_order: bool) -> None:
        """Compare the losses of the outputs with the number that was logged; outputs come before it in most loops."""
        chosen = self._open
        if chosen is None or self._outputs is None or self._logged is None:
            return
        logits, targets, own = self._outputs
        value = float(self._logged)
        name, means = agreeing(logits, targets, value)
        if in_order or name is not None:
            self._outputs = self._logged = None
        if name is not None:
            self._found(chosen, name, f"which gives the loop's own {value:.6g} on its batch")
        elif in_order and own:
            self._disagreed += 1
            if self._disagreed == TRIES:
                listed = ", ".join(f"{other} {mean:.6g}" for other, mean in means.items())
                why = f"no known loss agrees with the loop's, {value:.6g}, on its own outputs: {listed}"
                self._set(replace(chosen, certainty="guessed", why=why))

    def _set(self, found: LossFunction) -> None:
        task: Task | None = self._subject.task
        assert task is not None
        self._subject.task = with_loss(task, found)
