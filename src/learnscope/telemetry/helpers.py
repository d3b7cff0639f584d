"""The documented helpers: one for each section of a line, which a subclass may override."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from learnscope.telemetry.session import TelemetrySession

HELPERS = {
    "gradient_norm": "_compute_gradient_norm",
    "weight_delta": "_compute_weight_delta",
    "learning_rates": "_get_learning_rates",
    "holdout_logits": "_eval_holdout",
    "batch_stats": "_compute_batch_stats",
}
"""The helper of each section, in the order of a line."""
ORDER = [key for section in HELPERS for key in (section, f"{section}_since")]


class SectionHelpers:
    """Each helper returns the section that goes into the line. What an override returns goes there instead; it may call
    `super()` for what is measured here. They are called while a line is collected, by `on_batch_end`."""

    _session: TelemetrySession | None

    def _compute_gradient_norm(self, model: nn.Module) -> dict[str, Any]:
        """Gradient norms, overall and by group."""
        return self._measured("gradient_norm", model)

    def _compute_weight_delta(self, model: nn.Module) -> dict[str, Any]:
        """How far the weights have moved since the last line, overall and by group."""
        return self._measured("weight_delta", model)

    def _get_learning_rates(self, optimizer: Any) -> dict[str, Any]:  # noqa: ARG002  (as documented)
        """The learning rate of every group."""
        return self._measured("learning_rates")

    def _eval_holdout(self, model: nn.Module, device: Any) -> dict[str, Any]:  # noqa: ARG002  (as documented)
        """Logits, labels, predictions and accuracy on the holdout data."""
        return self._measured("holdout_logits", model)

    def _compute_batch_stats(self, batch: Any) -> dict[str, Any]:  # noqa: ARG002  (as documented)
        """Size of the batch and shares of its classes."""
        return self._measured("batch_stats")

    def _measured(self, section: str, model: nn.Module | None = None) -> dict[str, Any]:
        if self._session is None:
            raise RuntimeError(f"{section} is not measured: telemetry is switched off or closed")
        numbers: dict[str, Any] = self._session.section(section, model)
        return numbers

    def _is_overridden(self, section: str) -> bool:
        helper: Callable[..., Any] = getattr(self, HELPERS[section])
        return getattr(helper, "__func__", helper) is not getattr(SectionHelpers, HELPERS[section])
