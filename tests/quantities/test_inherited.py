"""Quantities that several probes share: declared once, each probe's own."""

from __future__ import annotations

import pytest

from learnscope.quantities import declared, quantity_of
from learnscope.quantities.outputs import VariantOutputs
from learnscope.quantities.updates import LowRankQuality, SparseQuality
from learnscope.quantities.weights import Spectrum, WeightSpectrum
from learnscope.tensor.adapters.spectrum import spectrum_numbers


def test_what_a_probe_inherits_is_its_own_and_the_base_stays_as_it_is() -> None:
    assert (SparseQuality.kl.probe, LowRankQuality.kl.probe, VariantOutputs.kl.probe) == (
        "SparseQuality", "LowRankQuality", "VariantOutputs",
    )  # fmt: skip
    assert SparseQuality.kl.meaning == LowRankQuality.kl.meaning == VariantOutputs.kl.meaning
    assert not VariantOutputs.kl.labels


def test_keywords_of_a_class_change_what_it_inherits_and_not_what_it_declares() -> None:
    assert set(SparseQuality.mended.labels) == {"threshold", "mask"}
    assert set(LowRankQuality.kl.labels) == {"rank"}
    assert set(LowRankQuality.recommended_rank.labels) == {"kl_bound"}
    assert Spectrum.effective_rank.drawn != WeightSpectrum.effective_rank.drawn == "not"


def test_bases_are_no_probes() -> None:
    assert not {"VariantOutputs", "Spectrum"} & set(declared())


def test_every_number_of_a_spectrum_is_declared_those_with_a_place_too() -> None:
    import torch

    names = set(spectrum_numbers([torch.ones(12)]).values)
    places = {"top{k}_sv_ratio", "top{k}_nuclear_share"}
    assert {Spectrum.named(name).name for name in names} == names
    assert {quantity.name for quantity in Spectrum.all()} - names == places
    assert WeightSpectrum.top_sv_ratio.at(k=5).name == "top5_sv_ratio"
    kept = quantity_of("WeightSpectrum", "top10_nuclear_share")
    assert kept is WeightSpectrum.top_nuclear_share


def test_a_name_that_is_not_declared_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="WeightSpectrum declares no quantity 'largest'"):
        WeightSpectrum.named("largest")
