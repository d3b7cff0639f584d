"""What numbers of features, outputs and examples are held against."""

from __future__ import annotations

from references.table.reference import EXACT, SPLITS, WIDE, held, of

# ---- features

_FEATURES = "the model computes features in float32, on both sides the same ones; then float64"
CLASSES = held(
    of("FeatureEvolution", "silhouette separability linear_probe linear_probe_chance"), "scikit-learn",
    "metrics.silhouette_score; calinski_harabasz_score·(k − 1)/(n − k); RidgeClassifierCV in StratifiedKFold; "
    "DummyClassifier", _FEATURES, 1e-6,
)  # fmt: skip
DISTANCES_OF_EXAMPLES = held(
    of("FeatureEvolution", "within_distance between_distance"),
    "scipy",
    "spatial.distance.pdist, cdist",
    _FEATURES,
    1e-6,
)
RANKS_OF_FEATURES = held(
    of("FeatureEvolution", "effective_rank rankme"), "scipy", "exp of stats.entropy, special.entr of linalg.svdvals",
    _FEATURES, 1e-6,
)  # fmt: skip
ACTIVATION_TAILS = held(
    of("Activations", "kurtosis output_kurtosis"),
    "scipy",
    "stats.kurtosis",
    "activations are float32, then float64",
    1e-6,
)
ACTIVATION_SIZES = held(
    of("Activations", "rms output_rms"), "scikit-learn", "metrics.root_mean_squared_error from 0",
    "activations are float32, then float64", 1e-6,
)  # fmt: skip
ACTIVATION_COUNTS = held(
    of("Activations", "nan inf output_nan output_inf dead_share"),
    "pandas",
    "isna, isin; (frame == 0).all().mean",
    EXACT,
)

# ---- outputs

CLASSIFIED = held(
    of("Performance", "loss accuracy top_k_accuracy"), "scikit-learn", "metrics.log_loss, accuracy_score, "
    "top_k_accuracy_score", SPLITS, 1e-6,
)  # fmt: skip
WILSON = held(
    of("Performance", "accuracy_low accuracy_high top_k_accuracy_low top_k_accuracy_high"), "scipy",
    "stats.binomtest(…).proportion_ci(method='wilson')", "the quantile of the normal distribution to 1e-15",
)  # fmt: skip
PERPLEXITY = held(
    of("Performance", "perplexity"), "torchmetrics", "text.Perplexity(ignore_index=-100)",
    "it works in float32, token by token", 1e-5,
)  # fmt: skip
TOKEN_LOSS = held(
    of("Performance", "loss"), "transformers", "the model's own loss, weighted by its tokens", "it is float32", 1e-5
)
HELD_OUT = held(
    of("Holdout", "holdout_loss holdout_accuracy"),
    "torchmetrics",
    "Accuracy; MeanMetric of cross entropies",
    SPLITS,
    1e-6,
)
BATCHES = held(
    of("BatchStats", "batch_size targets share target_mean target_std"), "pandas",
    "Series.size, count, value_counts(normalize=True), mean, std", "targets are float32, added up in float64", 1e-6,
)  # fmt: skip
LOGGED = held(
    of("Loss", "loss accuracy {key} {key}_std"), "pandas", "Series.mean, std of what was logged for the step", WIDE
)
_VARIANT = "float64 on both sides; a KL near 0 is a difference of nearly equal numbers"
SPARSE = held(
    of("SparseQuality", "kl kl_median kl_p99 cosine mse top1_agree broke mended kept_share"), "scikit-learn",
    "metrics.mean_squared_error, accuracy_score, confusion_matrix, pairwise.paired_cosine_distances; scipy's "
    "stats.entropy and pandas' quantile", _VARIANT, 1e-7, 1e-12,
)  # fmt: skip
LOW_RANK = held(
    of("LowRankQuality", "kl kl_median kl_p99 cosine mse top1_agree broke mended energy_captured stable_rank "
       "rank_for_energy recommended_rank"),
    "scikit-learn", "decomposition.TruncatedSVD of the update; metrics as for SparseQuality",
    _VARIANT + "; ARPACK iterates to 1e-10", 1e-6, 1e-12,
)  # fmt: skip

# ---- examples

MEMORIZED = held(
    of("Memorization", "accuracy loss brier proxy_membership_auc generalization_gap loss_gap"), "scikit-learn",
    "metrics.accuracy_score, log_loss, brier_score_loss(scale_by_half=False), roc_auc_score", SPLITS, 1e-5, 1e-6,
)  # fmt: skip
CALIBRATED = held(
    of("Memorization", "calibration_error"), "scikit-learn", "calibration.calibration_curve(strategy='quantile')",
    SPLITS, 1e-6,
)  # fmt: skip
SURE = held(
    of("Memorization", "confidence proxy_excess_confidence"), "pandas", "max(axis=1).mean; groupby(class).mean", SPLITS,
    1e-6, 1e-7,
)  # fmt: skip
GROUPS = held(
    of("GroupAccuracy", "accuracy gold_probability loss positions examples"), "pandas", "groupby(group).mean, size",
    SPLITS, 1e-6,
)  # fmt: skip
ASSOCIATION = held(of("GroupAccuracy", "association"), "scipy", "stats.contingency.association(method='cramer')", WIDE)
SIDES = held(
    of("GroupAccuracy", "aligned_accuracy aligned_accuracy_low aligned_accuracy_high conflicting_accuracy "
       "conflicting_accuracy_low conflicting_accuracy_high attribute_following attribute_following_low "
       "attribute_following_high bias_gap"),
    "scipy", "stats.binomtest(…): statistic, proportion_ci(method='wilson')",
    "the quantile of the normal distribution to 1e-15",
)  # fmt: skip
SIDES_OF_STATSMODELS = held(
    of("GroupAccuracy", "aligned_accuracy_low aligned_accuracy_high conflicting_accuracy_low "
       "conflicting_accuracy_high attribute_following_low attribute_following_high bias_gap_low bias_gap_high"),
    "statsmodels",
    "stats.proportion: proportion_confint(method='wilson'), confint_proportions_2indep(method='newcomb')",
    "the quantile of the normal distribution to 1e-15",
)  # fmt: skip
PRESENTED = held(
    of("ExampleLedger", "accuracy mean_loss mean_p_gold mean_cumulative_loss mean_confidence mean_variability "
       "mean_el2n"),
    "scikit-learn", "metrics.accuracy_score, log_loss; √ of brier_score_loss of one example; pandas' std(ddof=0)",
    SPLITS, 1e-6,
)  # fmt: skip
QUANTILES = held(
    of("ExampleLedger", "confidence variability el2n cumulative_loss"), "pandas",
    "groupby(id).mean, std(ddof=0), sum, then quantile", SPLITS, 1e-6,
)  # fmt: skip
LABEL_QUALITY = held(
    of("ExampleLedger", "mean_confidence mean_aum aum confidence"), "cleanlab",
    "rank.get_self_confidence_for_each_label; get_normalized_margin_for_each_label, of logits instead of probabilities",
    SPLITS, 1e-6,
)  # fmt: skip
TRANSITIONS = held(
    of("ExampleTransitions", "mean_cosine cosine mean_loss_drop loss_drop"), "scikit-learn",
    "metrics.pairwise.paired_cosine_distances of one backward an example; log_loss", WIDE, 1e-7, 1e-12,
)  # fmt: skip
