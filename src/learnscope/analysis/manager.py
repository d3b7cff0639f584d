"""The manager: counts optimizer steps, and measures when one is due."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from learnscope.analysis import metrics as computers
from learnscope.analysis.config import AnalysisConfig
from learnscope.analysis.metrics import MetricComputer
from learnscope.analysis.session import AnalysisSession
from learnscope.core.probe import Probe, ProbeWarning
from learnscope.model.sharded import ShardedModelError
from learnscope.options import explain_options
from learnscope.run import Run
from learnscope.task import Task


class ModelAnalysisManager:
    """Measures a model every so many optimizer steps, whatever the training loop is.

    The first call takes the weights that the first measurement compares with; metrics come `interval` steps later
    and every `interval` steps from then on. An error in one metric is a warning: training and other metrics go on.

    >>> model = nn.Linear(4, 2)
    >>> analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=2, sparse_quality_enabled=False))
    >>> for _ in range(3):
    ...     _ = model.weight.data.add_(0.5)
    ...     metrics = analyzer.on_optimizer_step(model)
    >>> metrics["param_change/norm_max"], round(metrics["param_change/sparsity_at_1e-06"], 3)
    (1.0, 0.2)
    """

    @explain_options
    def __init__(
        self,
        config: AnalysisConfig | None = None,
        *,
        run: str | Path | None = None,
        task: Task | None = None,
        strict: bool = False,
    ) -> None:
        """An empty manager for your own metrics; `create` adds those that the configuration names.

        Args:
            config: how often, and where the weights are kept.
            run: a run folder to write the records to as well, for reports and findings.
            task: how a batch becomes logits and targets, where the defaults do not recognise it.
            strict: raise when a metric fails, instead of warning and going on.
        """
        self.config = replace(config) if config is not None else AnalysisConfig()  # a copy, checked again
        self.reasons: dict[str, str] = {}
        """For the last measurement: why a metric is NaN."""
        self._options: dict[str, Any] = {"run": run, "task": task, "strict": strict}
        self._computers: list[MetricComputer] = []
        self._session: AnalysisSession | None = None
        self._state: Mapping[str, Any] | None = None
        self._has_failed = False

    @classmethod
    def create(cls, config: AnalysisConfig | None = None, **options: Any) -> ModelAnalysisManager:
        """A manager with the metrics that the configuration names."""
        manager = cls(config, **options)
        for computer in configured(manager.config):
            manager.add_metric(computer)
        return manager

    def add_metric(self, computer: MetricComputer | Probe) -> ModelAnalysisManager:
        """Add a metric computer, or any probe. Returns the manager, to chain calls."""
        if isinstance(computer, Probe):
            computer = computers.ProbeMetrics(computer)
        if not isinstance(computer, MetricComputer):
            kind = computer.__name__ if isinstance(computer, type) else type(computer).__name__
            hint = f"write {kind}() with its parentheses" if isinstance(computer, type) else "derive it from one"
            raise TypeError(f"a metric is an instance of MetricComputer or of learnscope.Probe; {kind} is not: {hint}")
        self._computers.append(computer)
        if self._session is not None:
            self._session.add(computer)
        return self

    def on_optimizer_step(
        self, model: nn.Module, inputs: Any = None, optimizer: Optimizer | None = None, **metadata: Any
    ) -> dict[str, Any]:
        """Call it after every optimizer step; the metrics by key, `{}` when none are due.

        Args:
            model: the model that was stepped.
            inputs: the step's batch, as the loader gave it: a dictionary, a tuple, a tensor. Without it, the
                arguments of the model's last training forward are used.
            optimizer: the optimizer; without it, the one that is seen to step the model's parameters.
            metadata: anything else that your own metrics want to know, as `context.metadata`.
        """
        try:
            if self._session is None:
                resumed = self._state is not None
                self._begin(model, optimizer)
                if not resumed:
                    return {}
            assert self._session is not None
            metrics, self.reasons = self._session.step(model, inputs, optimizer, metadata)
        except ShardedModelError:
            raise
        except Exception:  # whatever it is, it is ours and not the training's: reported, not passed on
            if self._options["strict"]:
                raise
            if not self._has_failed:
                message = f"the analysis failed, training goes on:\n{traceback.format_exc()}"
                warnings.warn(message, ProbeWarning, stacklevel=2)
            self._has_failed = True
            return {}
        return metrics

    def reset(self) -> None:
        """Forget the weights and the steps so far: the next call is a first call again, also for another model."""
        self.close()
        self._state, self._has_failed, self.reasons = None, False, {}

    def close(self) -> None:
        """Finish the run folder, if there is one, and take every hook away."""
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def run(self) -> Run | None:
        """What was recorded, if a run folder was named and measuring has begun."""
        return None if self._session is None or self._options["run"] is None else self._session.run

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs: the count of steps, the kept weights, the states of the metrics."""
        return {} if self._session is None else self._session.state_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], model: nn.Module | None = None, optimizer: Optimizer | None = None
    ) -> None:
        """Go on where `state_dict` was taken; metrics are then those of a run that was never interrupted.

        Without the model, looking begins with the next call of `on_optimizer_step`: if a measurement is due at it,
        what is seen only during a step (its gradients before a clip, its batch if it is not handed over) is missing.
        """
        missing = [key for key in ("steps", "snapshot_step", "weights", "states") if state and key not in state]
        if missing:
            raise ValueError(f"this is no state of a ModelAnalysisManager: it has no {missing[0]!r}")
        self.close()
        self._state = dict(state) or None
        if model is not None and self._state is not None:
            self._begin(model, optimizer)

    def _begin(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        state, self._state = self._state, None
        self._session = AnalysisSession(model, self.config, self._computers, optimizer, **self._options)
        if state is not None:
            self._session.load_state_dict(state)


def configured(config: AnalysisConfig) -> list[MetricComputer]:
    placement: dict[str, Any] = {"snapshot_device": config.snapshot_device, "snapshot_dtype": config.snapshot_dtype}
    chosen: list[MetricComputer] = []
    if config.param_change_enabled:
        thresholds = config.param_change_thresholds
        kinds = config.param_change_per_layer, config.param_change_track_components
        chosen.append(computers.ParameterChangeMetrics(thresholds, *kinds, **placement))
    if config.sparse_quality_enabled:
        thresholds = config.sparse_quality_thresholds
        baselines = config.sparse_quality_include_random, config.sparse_quality_include_random_changed
        chosen.append(computers.SparseQualityMetrics(thresholds, *baselines, **placement))
    if config.low_rank_enabled:
        chosen.append(computers.LowRankQualityMetrics(config.low_rank_ranks, **placement))
    chosen += [computers.GradientMetrics()] if config.gradient_enabled else []
    chosen += [computers.MomentumMetrics()] if config.momentum_enabled else []
    chosen += [computers.ActivationMetrics()] if config.activation_enabled else []
    chosen += [computers.LossLandscapeMetrics()] if config.loss_landscape_enabled else []
    return chosen
