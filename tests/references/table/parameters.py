"""What numbers of weights, adapters, updates and gradients are held against."""

from __future__ import annotations

from references.table.reference import EXACT, WIDE, held, of

# ---- weights

_ROUNDED = "both decompose in float64; rounding is 1e-16 of the largest singular value"
SINGULAR_VALUES = held(
    of("WeightSpectrum", "largest_sv smallest_sv spectral_gap condition_number numerical_rank nuclear_norm "
       "frobenius_norm stable_rank participation_ratio"),
    "numpy", "linalg.norm (2, -2, nuc, fro), linalg.cond, linalg.matrix_rank, and their ratios", _ROUNDED, 1e-9, 1e-14,
)  # fmt: skip
ENTROPY_OF_VALUES = held(
    of("WeightSpectrum", "effective_rank rank_utilisation"), "scipy", "exp of stats.entropy of linalg.svdvals", _ROUNDED
)
LEADING_VALUES = held(
    of("WeightSpectrum", "leading_gap top{k}_sv_ratio top{k}_nuclear_share"),
    "scikit-learn", "decomposition.TruncatedSVD(algorithm='arpack').singular_values_", "ARPACK iterates to 1e-10", 1e-7,
)  # fmt: skip
PARETO = held(
    of("WeightSpectrum", "power_law_alpha power_law_distance power_law_tail power_law_smallest"),
    "scipy", "stats.pareto.fit of every tail; the one with the least stats.kstest", WIDE,
)  # fmt: skip
POWERLAW = held(
    of("WeightSpectrum", "power_law_alpha power_law_tail"), "powerlaw",
    "Fit(eigenvalues, xmin=`power_law_smallest`): alpha, n_tail. It would choose another xmin, by the largest distance "
    "before each step of the empirical distribution; ours is the Kolmogorov–Smirnov distance, before and after", WIDE,
)  # fmt: skip
WEIGHTWATCHER = held(
    of("WeightSpectrum", "stable_rank frobenius_norm largest_sv numerical_rank"), "weightwatcher",
    "WeightWatcher.analyze: stable_rank, norm, spectral_norm, matrix_rank. (Its alpha: as for powerlaw)",
    "it decomposes in float32 and takes σ²", 1e-5,
)  # fmt: skip
KURTOSIS = held(of("WeightKurtosis", "weight_kurtosis update_kurtosis"), "scipy", "stats.kurtosis", WIDE)

# ---- adapters

_PRODUCT = "PEFT builds ΔW in float64, ours are the factors' values: rounding of the product"
LORA_VALUES = held(
    of("AdapterSpectrum", "largest_sv smallest_sv spectral_gap leading_gap condition_number numerical_rank "
       "effective_rank rank_utilisation stable_rank participation_ratio nuclear_norm frobenius_norm top{k}_sv_ratio "
       "top{k}_nuclear_share scaling"),
    "peft", "LoraLayer.get_delta_weight, decomposed by scipy.linalg.svdvals", _PRODUCT,
)  # fmt: skip
MERGED_LORA = held(
    of("AdapterSpectrum", "relative_norm"), "peft", "merge_and_unload, minus the weight before", _PRODUCT
)
LAYER_STATUS = held(of("AdapterSpectrum", "active merged rank"), "peft", "get_layer_status, LoraConfig.r", EXACT)
INTRUDERS = held(
    of("AdapterSpectrum", "intruder_dimensions"), "peft", "tuners.lora.intruders.reduce_intruder_dimension", EXACT
)
ANGLES = held(
    of("AdapterSpectrum", "left_angle left_drift right_angle right_drift"), "scipy",
    "linalg.subspace_angles of the singular vectors of PEFT's ΔW",
    "the spans of small singular values are known to about 1e-16·σ₁/σ_r", 1e-6,
)  # fmt: skip
MERGED_DORA = held(
    of("AdapterSpectrum", "merged_update_norm merged_update_largest_sv merged_update_effective_rank "
       "merged_update_stable_rank merged_update_nuclear_norm magnitude_norm direction_norm magnitude_direction_ratio"),
    "peft", "DoRA merged by merge_and_unload, and its state dictionary", _PRODUCT,
)  # fmt: skip
VECTORS = held(
    of("AdapterSpectrum", "vector_norm vector_mean vector_std vector_min vector_max vector_change"), "scipy",
    "stats.describe and spatial.distance.euclidean of IA³'s vectors", WIDE,
)  # fmt: skip
ALLOCATED = held(
    of("AdapterSpectrum", "importance_sum allocated_rank"), "peft",
    "AdaLoRA's RankAllocator.mask_to_budget: its scores, and what it leaves above 0", "its scores are float32", 1e-6,
)  # fmt: skip
ADAPTER_NORMS = held(
    of("AdapterGradients", "norm"), "lightning", "pytorch.utilities.grad_norm", "it adds up in float32", 1e-6
)

# ---- updates

_PASS = "float32 within rows of 512 entries, as docs/architecture.md says: up to 3e-7, and a few roundings"
DISTANCES = held(
    of("ParameterChange", "l1 l2 max visible_share sign_flip_share update_to_weight"), "scipy",
    "spatial.distance: cityblock, euclidean, chebyshev, hamming of bits and of signs", _PASS, 2e-6,
)  # fmt: skip
CHANGE_STATISTICS = held(
    of("ParameterChange", "mean mean_abs std nan inf"), "pandas", "Series.mean, abs().mean, std, isna().sum",
    _PASS + "; a mean of both signs is a difference of large sums", 2e-6, 1e-8,
)  # fmt: skip
THRESHOLDS = held(of("ParameterChange", "sparsity"), "scipy", "stats.percentileofscore(|Δ|, t, kind='weak')", EXACT)
DELTAS_ON_DISK = held(
    of("WeightDelta", "l2 update_to_weight"), "scipy", "spatial.distance.euclidean, linalg.norm", _PASS, 2e-6
)
BIAS_CORRECTED = held(
    of("Momentum", "first_moment_norm second_moment_mean effective_step_norm effective_step_max step_to_weight snr"),
    "pandas", "DataFrame.ewm(alpha=1 − β).mean, whose weights sum to 1: m̂ and v̂",
    "float64; the bias correction 1 − βᵗ is a division there and a sum of weights here", 1e-8,
)  # fmt: skip
STALENESS = held(of("Momentum", "staleness"), "scipy", "1 − spatial.distance.cosine(m̂ of pandas, gradient)", WIDE, 1e-8)
SCHEDULE = held(
    of("LearningRate", "learning_rate weight_decay"), "transformers",
    "get_scheduler: its rates, taken from AdamW's steps", "the rate is read off w·(1 − ηλ): rounding of one weight",
)  # fmt: skip

# ---- gradients

NORMS = held(of("GradientFlow", "norm"), "lightning", "pytorch.utilities.grad_norm", "it adds up in float32", 2e-6)
GRADIENT_SIZES = held(
    of("GradientFlow", "gradient_to_weight zero_share"), "scipy", "linalg.norm; sparse.coo_array.count_nonzero", _PASS,
    2e-6,
)  # fmt: skip
GRADIENT_MOMENTS = held(
    of("GradientFlow", "mean variance"), "scipy", "stats.describe",
    "float32 gradients, summed in float64 by both; a mean of both signs cancels", 1e-6, 1e-9,
)  # fmt: skip
NOT_FINITE = held(
    of("GradientFlow", "nan inf nonfinite_tensors"), "pandas", "isna, with infinities replaced or not", EXACT
)
CLIPPED = held(
    of("GradientFlow", "clip_coefficient"), "accelerate",
    "Accelerator.clip_grad_norm_, by what it did to the gradients", "float32 norms of both", 2e-6,
)  # fmt: skip

SCATTER = held(
    of("GradientFlow", "noise signal noise_scale"), "pandas",
    "DataFrame.var().sum() of the micro-batches' gradients; ewm(adjust=False)", WIDE, 1e-7,
)  # fmt: skip
