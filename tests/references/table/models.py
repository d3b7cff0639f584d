"""What numbers of models in few bits, of cost, of the loss around the weights and of robustness are held against."""

from __future__ import annotations

from references.table.reference import EXACT, WIDE, held, of

# ---- bits

_SAME_BITS = "torchao's codes give the same weights to float32's last digit; a small KL sees the logits' rounding"
TORCHAO = held(
    of("BitWidths", "kl kl_median kl_p99 cosine mse top1_agree broke mended loss loss_change perplexity accuracy"),
    "torchao", "quantization.quant_primitives: choose_qparams_affine, quantize_affine, dequantize_affine",
    _SAME_BITS, 1e-3, 1e-6,
)  # fmt: skip
TORCHAO_UNITS = held(
    of("BitSensitivity", "kl kl_median kl_p99 cosine mse top1_agree"), "torchao", "the same, one unit at a time",
    _SAME_BITS, 1e-3, 1e-6,
)  # fmt: skip
TORCHAO_CLASSES = held(of("BitRobustness", "loss accuracy"), "torchao", "the same, without an attack", _SAME_BITS, 1e-6)
STORED = held(
    of("BitWidths", "original_bytes"),
    "transformers",
    "PreTrainedModel.get_memory_footprint(return_buffers=False)",
    EXACT,
)

# ---- cost

SIZES = held(
    of("MemoryUse", "parameters model_bytes"), "transformers",
    "PreTrainedModel.num_parameters, get_memory_footprint", EXACT,
)  # fmt: skip
FLOPS = held(
    of("InferenceSpeed", "flops"), "fvcore", "2 · nn.FlopCountAnalysis(…).total()", "it counts multiply-adds", 1e-12
)

# ---- landscape

_ARPACK = "Lanczos stops at a residual of 1e-9; finite differences are right to 1e-8"
NUMERIC_HESSIAN = held(
    of("LossLandscape", "sharpness eigenvalue smallest_eigenvalue gradient_norm preconditioned_sharpness"), "scipy",
    "differentiate.hessian and jacobian of the loss's values alone, linalg.eigvalsh", _ARPACK, 1e-6,
)  # fmt: skip
LOSS_AT_THE_WEIGHTS = held(of("LossLandscape", "loss"), "scikit-learn", "metrics.log_loss", WIDE)
TRACES = held(
    of("LossLandscape", "trace trace_error"), "scipy",
    "the trace of differentiate.hessian, and √(2·Σ of its squared entries off the diagonal / samples)",
    "both are estimates from 4,000 samples: their own errors are 0.4 % and 1.5 %, here times 5", 0.08,
)  # fmt: skip

# ---- robustness

FOOLBOX = held(
    of("Attacks", "loss accuracy kl"),
    "foolbox",
    "attacks.LinfFastGradientAttack, L2FastGradientAttack",
    WIDE,
    1e-9,
    1e-12,
)
STUDENT = held(
    of("NoiseRobustness", "loss_mean loss_mean_low loss_mean_high kl_mean kl_mean_low kl_mean_high"), "scipy",
    "stats.ttest_1samp(…).confidence_interval over seeds, of scikit-learn's log_loss and stats.entropy", WIDE, 1e-9,
    1e-12,
)  # fmt: skip
