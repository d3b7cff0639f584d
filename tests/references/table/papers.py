"""Formulas of papers, for which no installed project has code: written down once more in test_papers.py."""

from __future__ import annotations

from references.table.reference import EXACT, SPLITS, WIDE, formula, of

FORGETTING = formula(
    of("ExampleLedger", "forgetting_events never_learned unforgettable learned"), "arXiv 1812.05159",
    "events where an example is right at one presentation and wrong at the next", EXACT,
)  # fmt: skip
MARGINS = formula(
    of("ExampleLedger", "mean_aum aum"), "arXiv 2001.10528",
    "mean over presentations of the assigned logit minus the largest other", SPLITS, 1e-6,
)  # fmt: skip
ERROR_NORMS = formula(
    of("ExampleLedger", "mean_el2n el2n"),
    "arXiv 2107.07075",
    "‖p − onehot(y)‖₂, mean over presentations",
    SPLITS,
    1e-6,
)
CARTOGRAPHY = formula(
    of("ExampleLedger", "mean_confidence mean_variability confidence variability"), "arXiv 2009.10795",
    "mean and population standard deviation of p(gold) over epochs", SPLITS, 1e-6,
)  # fmt: skip
NOISE_SCALE = formula(
    of("GradientFlow", "noise signal"), "arXiv 1812.06162, appendix A.1",
    "|G|² = (B|G_B|² − b|G_b|²)/(B − b), S = (|G_b|² − |G_B|²)/(1/b − 1/B)", WIDE, 1e-7,
)  # fmt: skip
CKA = formula(
    of("FeatureEvolution", "cka_first cka_previous"), "arXiv 2010.15327",
    "HSIC₁ of the two Gram matrices over the root of its values with themselves",
    "features in float32, then float64; differences of large sums", 1e-6, 1e-9,
)  # fmt: skip
EDGE_OF_STABILITY = formula(
    of("LossLandscape", "sharpness_threshold momentum_threshold"), "arXiv 2103.00065", "2/η, (2 + 2μ)/η", WIDE
)
ADAPTIVE_EDGE = formula(
    of("LossLandscape", "preconditioned_threshold"), "arXiv 2207.14484", "(2 + 2β₁)/((1 − β₁)η)", WIDE
)
INTRUDER_COSINES = formula(
    of("AdapterSpectrum", "intruder_similarity"), "arXiv 2410.21228",
    "the least, over the leading singular vectors of W + ΔW, of the largest cosine with one of W's", WIDE, 1e-7,
)  # fmt: skip
