"""Betas that were exchanged."""

from __future__ import annotations

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling

EXCHANGED = (0.999, 0.9)


def thrown_about() -> list[float]:
    """A loss that falls, and is thrown up by a factor of millions towards the end, now and then."""
    losses = np.array(falling(noise=0.01))
    losses[220:232] *= 1e6
    losses[255:262] *= 1e3
    losses[232:] += 1.5
    return losses.tolist()


def spiked() -> list[float]:
    losses = np.array(falling(noise=0.01))
    losses[250] = 1e6
    return losses.tolist()


@pytest.mark.parametrize("losses", [thrown_about(), spiked()], ids=["thrown about", "spiked"])
def test_exchanged_betas_explain_what_the_loss_does(losses: list[float]) -> None:
    [finding] = MadeTraining(betas=EXCHANGED).train(losses).alarms
    assert (finding.kind, finding.cause) == ("momentum_too_high", True)
    assert "0.999 and 0.9" in finding.title


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.99, 0.999), (0.9, 0.9), None])
def test_other_betas_are_not_to_blame(betas: tuple[float, float] | None) -> None:
    assert "momentum_too_high" not in MadeTraining(betas=betas).train(spiked()).kinds


def test_a_loss_that_falls_all_the_same() -> None:
    assert MadeTraining(betas=EXCHANGED).train(falling()).alarms == []


def test_a_momentum_of_one() -> None:
    [finding] = MadeTraining("SGD", momentum=1.0).train(thrown_about()).alarms
    assert (finding.kind, finding.cause) == ("momentum_too_high", True)
    assert "nothing of any gradient is ever forgotten" in finding.title
    assert "momentum_too_high" not in MadeTraining("SGD", momentum=0.99).train(thrown_about()).kinds
    assert MadeTraining("SGD", momentum=1.0).train(falling()).alarms == []
