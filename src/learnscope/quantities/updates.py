"""What is recorded of updates: what the optimizer does to the weights, and what it remembers."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity, with_interval
from learnscope.quantities.outputs import VariantOutputs

_SCOPES = ("model", "layer", "component", "group", "named", "tensor")
_SAMPLED = ("model", "layer")
_ROUNDING = {
    "rounding": "`apart`, where decay is rounded by itself (w·(1 − ηλ) is w again, or for decay by the gradient g + λw "
    "is g again); `together`, a fused AdamW, which rounds once: the weight did not change at all; none where no weight "
    "decay was measured"
}
_HALF = "of half-precision weights, or with `absorbed=True`"


class ParameterChange(Quantities):
    records = "how far and how densely the weights move"

    l1 = Quantity("Σ|Δ|", kinds=_SCOPES, scale="log", drawn="not")
    l2 = Quantity("√ΣΔ²", kinds=_SCOPES, scale="log", drawn="not")
    max = Quantity("max|Δ|", kinds=_SCOPES, scale="log", drawn="not")
    mean = Quantity("mean of the entries of Δ", kinds=_SCOPES, drawn="not")
    mean_abs = Quantity("mean of |Δ|", kinds=_SCOPES, scale="log", drawn="not")
    std = Quantity("unbiased standard deviation of the entries of Δ", kinds=_SCOPES, scale="log", drawn="not")
    update_to_weight = Quantity(
        "‖Δ‖/‖W‖, W before the change", kinds=_SCOPES, scale="log", drawn="in a figure of its own"
    )
    sign_flip_share = Quantity("share of entries that changed sign", kinds=_SCOPES, scale="share", drawn="not")
    visible_share = Quantity(
        "share of entries whose stored bits changed", kinds=_SCOPES, scale="share", drawn="in a figure of its own"
    )
    nan = Quantity("entries of Δ that are NaN: they make norms null and count as changed", kinds=_SCOPES, drawn="not")
    inf = Quantity("entries of Δ that are ±∞: they make norms null and count as changed", kinds=_SCOPES, drawn="not")
    sparsity = Quantity(
        "share of entries with |Δ| ≤ `threshold`", kinds=_SCOPES,
        labels={"threshold": "the t of |Δ| ≤ t", "dtype": "that of the weights, or `mixed`"}, scale="share",
        drawn="in a figure of its own",
    )  # fmt: skip
    absorbed_share, absorbed_share_low, absorbed_share_high = with_interval(
        Quantity(
            "share of entries that the last step's update left bit-identical though it was not 0 in float32, on a "
            "sample; null for an optimizer whose update is not known",
            kinds=_SAMPLED, scale="share", drawn="in a figure of its own", when=_HALF,
        ),
        "of a sample in strata of unequal size",
    )  # fmt: skip
    absorbed_coverage = Quantity(
        "share of the updated entries whose optimizer is known, of which `absorbed_share` is a share",
        kinds=_SAMPLED, scale="share", drawn="not", when=_HALF,
    )  # fmt: skip
    decay_absorbed_share, decay_absorbed_share_low, decay_absorbed_share_high = with_interval(
        Quantity(
            "of the entries with a weight decay other than 0, those on which it leaves no trace, on the same sample",
            kinds=_SAMPLED, labels=_ROUNDING, scale="share", drawn="in a figure of its own", when=_HALF,
        ),
        "of a sample in strata of unequal size",
    )  # fmt: skip


class WeightDelta(Quantities):
    records = "how far the weights move, against a file on disk"

    l2 = Quantity("√ΣΔ²", kinds=("model", "layer", "group", "named"), scale="log")
    update_to_weight = Quantity("‖Δ‖/‖W‖, W before the change", kinds=("model", "layer", "group", "named"), scale="log")


_PARTS = ("model", "layer", "component", "group")
_RULE = {
    "rule": "`adam` for Adam, AdamW and what inherits from them; `momentum` for SGD, of which m̂ is the momentum buffer "
    "as it is"
}
_ADAM = "Adam and its kin"


class Momentum(Quantities):
    records = "the optimizer's moments, the step they make, how noisy and how stale they are"

    lr = Quantity("the learning rate as the step used it", kinds=("group",), drawn="not")
    beta1 = Quantity("β₁ as the step used it", kinds=("group",), drawn="not")
    beta2 = Quantity("β₂ as the step used it", kinds=("group",), drawn="not")
    first_moment_norm = Quantity("‖m̂‖", kinds=_PARTS, labels=_RULE, scale="log", drawn="not")
    staleness = Quantity(
        "cosine of m̂ with the present gradient: 1 is fresh, 0 has nothing to do with it. The gradient is the one that "
        "the step was given, clipped or not, without weight decay",
        kinds=_PARTS, labels=_RULE, drawn="in a figure of its own",
    )  # fmt: skip
    second_moment_mean = Quantity("mean of v̂", kinds=_PARTS, labels=_RULE, scale="log", drawn="not", when=_ADAM)
    effective_step_norm = Quantity(
        "norm of η·m̂/(√v̂ + ε), without weight decay; for AMSGrad v̂ is the running maximum here",
        kinds=_PARTS, labels=_RULE, source="arXiv 1412.6980", scale="log", drawn="not", when=_ADAM,
    )  # fmt: skip
    effective_step_max = Quantity(
        "largest size of an entry of it", kinds=_PARTS, labels=_RULE, source="arXiv 1412.6980", scale="log",
        drawn="not", when=_ADAM,
    )  # fmt: skip
    step_to_weight = Quantity(
        "`effective_step_norm`/‖W‖, W after the step", kinds=_PARTS, labels=_RULE, scale="log",
        drawn="in a figure of its own", when=_ADAM,
    )  # fmt: skip
    snr = Quantity(
        "signal to noise |m̂|/√max(v̂ − m̂², 0). Infinite (null, status `inf`) where there is no noise, or none that the "
        "dtype of the moments can tell from rounding, as after a first step",
        kinds=_PARTS,
        labels=_RULE
        | {
            "summary": "`median` over a fixed sample of entries, each weighted by the entries it stands for, without "
            "those that never had a gradient; `norm_ratio`: √(Σm̂²/Σmax(v̂ − m̂², 0)) over all"
        },
        scale="log", drawn="in a figure of its own", when=_ADAM,
    )  # fmt: skip
    without_state = Quantity(
        "tensors without moments: frozen, never stepped, in no optimizer, SGD without momentum",
        kinds=_PARTS, drawn="not",
    )  # fmt: skip
    unknown_optimizer = Quantity(
        "tensors of an optimizer whose moments are not known, such as NAdam", kinds=_PARTS, drawn="not"
    )
    without_gradient = Quantity(
        "tensors with moments that `staleness` leaves out, as their gradient is gone", kinds=_PARTS, drawn="not"
    )


class LearningRate(Quantities):
    records = "the learning rate of every optimizer group"

    learning_rate = Quantity(
        "as set by the schedule for this step; of a named group, if its parameters have one in common",
        kinds=("group", "named"), drawn="in a figure of its own",
    )  # fmt: skip
    weight_decay = Quantity("the group's λ", kinds=("group",), drawn="not", when="where a group has one")


_MASK = {
    "threshold": "the t of |Δ| ≤ t",
    "mask": "which changes were kept: `magnitude`, `random`, `random_changed`",
}


class SparseQuality(VariantOutputs, labels=_MASK):
    records = "how close the outputs would be with a sparse update"

    kept_share = Quantity(
        "share of all entries whose change was kept", labels=_MASK, scale="share", drawn="in a figure of its own"
    )


_RANK = {"rank": "that of each matrix's update; 0 is no update of the matrices at all"}


class LowRankQuality(VariantOutputs, labels=_RANK):
    records = "how close the outputs would be with a low-rank update"

    recommended_rank = Quantity(
        "smallest of `ranks` with a mean KL of at most `kl_bound`", labels={"kl_bound": "in nats per position"},
        drawn="in a figure of its own",
    )  # fmt: skip
    energy_captured = Quantity(
        "Σ_{i≤rank} σᵢ² / ‖ΔW‖_F² over all matrices of the scope", kinds=("model", "layer", "component"),
        labels={"rank": "that of each matrix's update, from 1"}, scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    stable_rank = Quantity("‖ΔW‖_F²/σ₁²", kinds=("tensor",), drawn="not")
    rank_for_energy = Quantity(
        "smallest rank that holds the share `energy` of ‖ΔW‖_F²", kinds=("tensor",),
        labels={"energy": "a share"}, drawn="not",
    )  # fmt: skip
    decomposed = Quantity("matrices whose update was decomposed", drawn="not")
    approximated = Quantity(
        "those of them decomposed by randomised iteration, whose energies are about 1 % low on pure noise and far less "
        "elsewhere (see `tensor.updates.lowrank.decompose`)",
        drawn="not",
    )  # fmt: skip
    unchanged = Quantity("matrices that did not change", drawn="not")
    undecomposed = Quantity(
        "matrices whose ΔW is not finite: they keep their whole update and enter no energy", drawn="not"
    )
