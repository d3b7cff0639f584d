"""Quantiles of the KL over positions, and flips, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special

from learnscope.tensor.outputs.divergence import NEEDED_P999, compare_logits, far_quantile, summarise


@pytest.mark.parametrize("positions", [1, 500, NEEDED_P999 - 1, NEEDED_P999, 5000])
def test_quantiles_and_flips_are_numpys(positions: int) -> None:
    generator = np.random.default_rng(positions)
    a = generator.normal(size=(positions, 7)) * 3
    b = a + generator.normal(size=a.shape) * generator.lognormal(-2, 2, size=(positions, 1))
    targets = generator.integers(7, size=positions)
    cut = positions // 3
    parts = [
        compare_logits(*(torch.from_numpy(x[rows]) for x in (a, b, targets)))
        for rows in (slice(cut), slice(cut, None))
        if len(a[rows])
    ]
    found = {name: float(value) for name, value in summarise(parts).items()} | {"kl_p999": float(far_quantile(parts))}
    p, q = special.log_softmax(a, 1), special.log_softmax(b, 1)
    kl = (np.exp(p) * (p - q)).sum(1)
    for name, share in {"kl_median": 0.5, "kl_p99": 0.99, "kl_p999": 0.999}.items():
        if name == "kl_p999" and positions < NEEDED_P999:
            assert np.isnan(found[name])
        else:
            assert found[name] == pytest.approx(np.quantile(kl, share), rel=1e-9)
    was, now = a.argmax(1) == targets, b.argmax(1) == targets
    flips = {"broke": was & ~now, "mended": ~was & now, "top1_agree": a.argmax(1) == b.argmax(1)}
    for name, each in flips.items():
        assert found[name] == pytest.approx(each.mean(), abs=1e-12)
    other = (a.argmax(1) != b.argmax(1)) & ~was & ~now
    assert 1 - found["top1_agree"] == pytest.approx(found["broke"] + found["mended"] + other.mean())


def test_how_many_positions_the_last_percentile_needs() -> None:
    """The largest of so many is above the 99.9th percentile in 95 % of cases, and not of one fewer."""
    assert 1 - 0.999**NEEDED_P999 >= 0.95 > 1 - 0.999 ** (NEEDED_P999 - 1)
