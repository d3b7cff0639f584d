"""What PiSSA and MiLoRA begin with is kept by the session, also over a resume in another process's objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.model.adapters.families import NO_START
from learnscope.model.adapters.start import _STARTS
from model.adapters.adapted import Adapted, adapted, scopes, token_batches, update

PROBE = "AdapterSpectrum"


def forgotten(one: Adapted) -> Adapted:
    """As a model that another process has built: nothing is known of how its adapters began."""
    _STARTS.clear()
    return one


def assert_spectra_are_of_the_change(run: ls.Run, one: Adapted) -> None:
    held = run.arrays(PROBE)
    for scope in scopes(one):
        truth = torch.linalg.svdvals(update(one, scope)).numpy()
        found = held[f"singular_values/default/{scope}"]
        np.testing.assert_allclose(found, truth[: len(found)], rtol=1e-5, atol=1e-12)
        assert found[0] > 0


def test_the_opening_keeps_what_pissa_begins_with() -> None:
    one = forgotten(adapted("pissa"))
    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterSpectrum(every=5)], strict=True) as w:
        one.train(5)
    assert_spectra_are_of_the_change(w.run, one)


@pytest.mark.parametrize("family", ["pissa", "milora", "milora+"])
def test_a_resumed_session_knows_the_start_from_its_state(family: str, tmp_path: Path) -> None:
    """Two probes keep the same start, of which each saves its own."""
    one, where = adapted(family), tmp_path / "run"
    probes = [ls.AdapterSpectrum(every=3), ls.AdapterTruncation()]
    given = {"run": where, "probes": probes, "holdout": token_batches(1), "strict": True}
    with ls.watch(one.model, one.optimizer, **given) as w:
        one.train(3)
        w.save_state()
    forgotten(one)
    with ls.watch(one.model, one.optimizer, **given, resume=True) as w:
        one.train(3)
    assert_spectra_are_of_the_change(w.run, one)
    assert set(w.run.frame(PROBE, "frobenius_norm").family) == {family}


def test_without_a_state_the_start_of_a_resumed_session_is_not_made_up(tmp_path: Path) -> None:
    one, where = adapted("pissa"), tmp_path / "run"
    with ls.watch(one.model, one.optimizer, run=where, probes=[ls.AdapterSpectrum(every=3)], strict=True):
        one.train(3)
    forgotten(one)
    probes = [ls.AdapterSpectrum(every=3)]
    with pytest.warns(ls.ProbeWarning, match="what AdapterSpectrum remembered is lost"):
        w = ls.watch(one.model, one.optimizer, run=where, probes=probes, strict=True, resume=True)
    with w:
        one.train(3)
    frame = w.run.frame(PROBE, "frobenius_norm")
    assert frame[frame.step == 3].value.gt(0).all()
    assert frame[frame.step == 6].value.isna().all()
    assert set(frame[frame.step == 6].status) == {NO_START}


def test_an_audit_does_not_take_trained_factors_for_a_start() -> None:
    one = forgotten(adapted("pissa"))
    run = ls.audit(one.model, probes=[ls.AdapterSpectrum()], strict=True)
    assert set(run.frame(PROBE, "frobenius_norm").status) == {NO_START}


def test_a_model_without_adapters_is_refused_at_opening(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ls.AdapterError, match="Linear has no adapters: wrap it with peft"):
        ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.AdapterSpectrum()])
    assert not (tmp_path / "run").exists()
