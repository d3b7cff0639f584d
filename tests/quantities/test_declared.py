"""Every probe of the package declares what it records; what is made from the declarations is up to date."""

from __future__ import annotations

import gc
import runpy
import sys
from pathlib import Path

import pytest

import learnscope as ls
from learnscope.probes import all_probes, probe_modules
from learnscope.quantities import Quantities, Quantity, declared, quantity_of
from learnscope.quantities.base import names_table

ROOT = Path(__file__).parents[2]
PACKAGED = [probe for probe in all_probes() if probe.__name__ in probe_modules()]


def test_every_probe_declares_its_names_and_its_cost() -> None:
    assert len(PACKAGED) >= 34
    assert set(declared()) == {probe.__name__ for probe in PACKAGED}
    for probe in PACKAGED:
        assert probe.quantities is declared()[probe.__name__], probe
        assert probe.cost, f"{probe.__name__} does not say what a firing takes"
        for quantity in probe.quantities.all():
            assert quantity.probe == probe.__name__
            assert quantity.meaning, quantity
            assert quantity.kinds, quantity


def test_a_users_own_probe_has_the_quantities_that_it_names() -> None:
    class Weights(Quantities):
        norm = Quantity("√Σw²")

    def own(name: str, base: type[ls.Probe] = ls.Probe, **body: object) -> type[ls.Probe]:
        return type(name, (base,), {"__module__": "mine", **body})

    assert own("WeightKurtosis").quantities is None
    assert own("WeightKurtosis", quantities=Weights).quantities is Weights
    assert own("Mine", ls.WeightKurtosis).quantities is declared()["WeightKurtosis"]
    gc.collect()  # a class that is still there would be one of the probes of this process


def test_quantities_stand_in_the_family_of_their_probe() -> None:
    for probe in PACKAGED:
        assert probe.quantities is not None
        assert probe.quantities.__module__.split(".")[-1] == probe.__module__.split(".")[-2], probe


def test_docstrings_have_the_table_and_no_other() -> None:
    for probe in PACKAGED:
        assert probe.quantities is not None
        assert probe.__doc__ is not None
        assert probe.__doc__.count("| name |") == 1, probe
        assert names_table(probe.quantities) in probe.__doc__


def test_what_is_made_from_them_is_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(ROOT / "scripts" / "write_names.py")
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds to it
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr().err


def test_names_are_found_again() -> None:
    norm = quantity_of("GradientFlow", "norm")
    assert norm is not None
    assert norm.meaning == "√Σg²"
    assert quantity_of("GradientFlow", "no such name") is None
    assert quantity_of("NoSuchProbe", "norm") is None


def test_a_subclass_owns_what_it_inherits() -> None:
    class Shared(Quantities):
        kl = Quantity("KL")
        top = Quantity("share of the k largest", name="top{k}")

    class Mine(Shared):
        records = "something"

    assert (Shared.kl.probe, Mine.kl.probe, Mine.kl.name) == ("Shared", "Mine", "kl")
    assert [quantity.name for quantity in Mine.all()] == ["kl", "top{k}"]
    assert Mine.top.at(k=5).column([1.0]).name == "top5"
    assert Mine.of("top12") == Mine.top
    assert Mine.of("kl") == Mine.kl
    assert Mine.of("other") is None


def test_a_typo_fails_at_once() -> None:
    with pytest.raises(AttributeError):
        _ = declared()["GradientFlow"].nrom  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="NoSuchProbe"):
        _ = ls.NoSuchProbe


def test_json_and_back() -> None:
    quantity = Quantity(
        "x", kinds=("layer", "model"), labels={"t": "a threshold"}, scale="log", better="lower", name="n"
    )
    assert Quantity.from_json(quantity.to_json()) == quantity
    assert Quantity.from_json({**quantity.to_json(), "of a later version": 1}) == quantity
