"""What is recorded of updates: what the optimizer does to the weights, and what it remembers."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure, with_interval
from learnscope.quantities.outputs import VariantOutputs

_SCOPES = ("model", "layer", "component", "group", "named", "tensor")
_ROUNDING = {
    "rounding": "`apart`, where decay is rounded by itself (w·(1 − ηλ) is w again, or for decay by the gradient g + λw "
    "is g again); `together`, a fused AdamW, which rounds once: the weight did not change at all; none where no weight "
    "decay was measured"
}
_HALF = "of half-precision weights, or with `absorbed=True`"
_STRATA = "of a sample in strata of unequal size"
_sampled = partial(Quantity, kinds=("model", "layer"), scale="share", drawn="in a figure of its own", when=_HALF)
_change = partial(Quantity, kinds=_SCOPES, drawn="not")


class ParameterChange(Quantities):
    records = "how far and how densely the weights move"

    l1 = _change("Σ|Δ|", scale="log")
    l2 = _change("√ΣΔ²", scale="log")
    max = _change("max|Δ|", scale="log")
    mean = _change("mean of the entries of Δ")
    mean_abs = _change("mean of |Δ|", scale="log")
    std = _change("unbiased standard deviation of the entries of Δ", scale="log")
    update_to_weight = own_figure("‖Δ‖/‖W‖, W before the change", kinds=_SCOPES, scale="log")
    sign_flip_share = _change("share of entries that changed sign", scale="share")
    visible_share = own_figure("share of entries whose stored bits changed", kinds=_SCOPES, scale="share")
    nan = _change("entries of Δ that are NaN: they make norms null and count as changed")
    inf = _change("entries of Δ that are ±∞: they make norms null and count as changed")
    sparsity = own_figure(
        "share of entries with |Δ| ≤ `threshold`", kinds=_SCOPES,
        labels={"threshold": "the t of |Δ| ≤ t", "dtype": "that of the weights, or `mixed`"}, scale="share",
    )  # fmt: skip
    absorbed_share, absorbed_share_low, absorbed_share_high = with_interval(
        _sampled(
            "share of sampled entries whose bits a float32 update ≠ 0 left unchanged; null for an unknown optimizer"
        ),
        _STRATA,
    )
    absorbed_coverage = _sampled("share of the updated entries with a known optimizer, the ones sampled", drawn="not")
    decay_absorbed_share, decay_absorbed_share_low, decay_absorbed_share_high = with_interval(
        _sampled("share of entries with weight decay that it left unchanged; same sample", labels=_ROUNDING), _STRATA
    )


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
_moment = partial(Quantity, kinds=_PARTS, labels=_RULE, scale="log", drawn="not")
_tensors = partial(Quantity, kinds=_PARTS, drawn="not")


class Momentum(Quantities):
    records = "the optimizer's moments, the step they make, how noisy and how stale they are"

    lr = not_drawn("the learning rate as the step used it", kinds=("group",))
    beta1 = not_drawn("β₁ as the step used it", kinds=("group",))
    beta2 = not_drawn("β₂ as the step used it", kinds=("group",))
    first_moment_norm = _moment("‖m̂‖")
    staleness = own_figure(
        "cosine of m̂ with this step's gradient, without decay: 1 is fresh, 0 is unrelated", kinds=_PARTS, labels=_RULE
    )
    second_moment_mean = _moment("mean of v̂", when=_ADAM)
    effective_step_norm = _moment(
        "norm of η·m̂/(√v̂ + ε), without decay; v̂ is AMSGrad's running maximum", source="arXiv 1412.6980", when=_ADAM
    )
    effective_step_max = _moment("largest |entry| of it", source="arXiv 1412.6980", when=_ADAM)
    step_to_weight = own_figure(
        "`effective_step_norm`/‖W‖, W after the step", kinds=_PARTS, labels=_RULE, scale="log", when=_ADAM
    )
    snr = own_figure(
        "signal to noise |m̂|/√max(v̂ − m̂², 0). Infinite (null, status `inf`) without noise, or with none that the "
        "moments' dtype can tell from rounding, as after a first step", kinds=_PARTS, labels=_RULE
        | {
            "summary": "`median` over a fixed sample of entries, each weighted by the entries it stands for, without "
            "those that never had a gradient; `norm_ratio`: √(Σm̂²/Σmax(v̂ − m̂², 0)) over all"
        }, scale="log", when=_ADAM,
    )  # fmt: skip
    without_state = _tensors("tensors without moments: frozen, never stepped, in no optimizer, SGD without momentum")
    unknown_optimizer = _tensors("tensors of an optimizer with unknown moments, such as NAdam")
    without_gradient = _tensors("tensors with moments that `staleness` leaves out because their gradient is gone")


_calls = partial(Quantity, drawn="not")


class LoopCalls(Quantities):
    records = "what the loop calls and in which order: steps, backward passes, clearing, modes, schedules"

    steps = _calls("optimizer steps since the last record")
    backwards = _calls("backward passes since then")
    uncleared_steps = _calls("steps whose gradients still contained those of an earlier step")
    cleared_steps = _calls("steps whose gradients were cleared between their backward and the step")
    steps_without_backward = _calls("steps without a backward since the optimizer's last step")
    backwards_without_step = _calls(
        "backward passes whose gradients were cleared, or left, before any optimizer stepped: a step that the loop or "
        "a GradScaler skipped, or a backward that is for the inputs' gradients alone"
    )
    eval_mode_steps = _calls(
        "steps whose backward found a part of the model that trains in eval mode: batch norms with trained parameters, "
        "and dropouts between trained parameters, if the module that contains them is in eval mode too"
    )
    weights_written = _calls(
        "steps before which something else than their optimizer had written the weights since its last step: a "
        "checkpoint that is loaded, an average that is put in, a bound; also a probe that changes weights and puts "
        "them back. Writes through `.data` leave no trace"
    )
    empty_clips = _calls("clips by norm that were given no tensor at all, as of an iterator that is used up")
    train_mode_evaluations = _calls(
        "forwards of the model under `no_grad` or `inference_mode` with a dropout or batch norm in training mode; null "
        "of a model that was compiled before"
    )
    state_resets = _calls(
        "groups whose optimizer state began again: Adam's `step` has fallen, or a momentum is gone; null where the "
        "optimizer keeps neither", when="with an optimizer"
    )  # fmt: skip
    scheduler_steps = _calls(
        "calls of `step()` of a torch learning rate schedule, of several the most; null where none was seen",
        when="with an optimizer",
    )
    rate_changes = _calls(
        "the most such calls between two training steps; more than 1 is a schedule that runs too fast",
        when="with an optimizer",
    )


class LearningRate(Quantities):
    records = "the learning rate of every optimizer group"

    learning_rate = own_figure(
        "as scheduled for this step; of a named group if all its parameters share one", kinds=("group", "named")
    )
    weight_decay = not_drawn("the group's λ", kinds=("group",), when="where a group has one")


_MASK = {
    "threshold": "the t of |Δ| ≤ t",
    "mask": "which changes were kept: `magnitude`, `random`, `random_changed`",
}


class SparseQuality(VariantOutputs, labels=_MASK):
    records = "how close the outputs would be with a sparse update"

    kept_share = own_figure("share of all entries whose change was kept", labels=_MASK, scale="share")


_REWOUND = {"rewound": "how many layers have their earlier weights, those of the least damage first; none of a layer"}
_rewound = partial(Quantity, kinds=("layer", "model"), labels=_REWOUND, drawn="not")


class LayerRewind(Quantities):
    records = "what is lost when layers have their earlier weights back"

    kl = _rewound("KL(model ‖ rewound) per position: mean", unit="nats", scale="log")
    mse = _rewound("mean squared difference of the logits, mean over positions", scale="log")
    damage_low = _rewound("95 % interval of `kl`, of `mse` for regression, over examples, studentised")
    damage_high = _rewound("95 % interval of `kl`, of `mse` for regression, over examples, studentised")
    loss_change, loss_change_low, loss_change_high = with_interval(
        _rewound("the loss minus the model's own", better="lower"), "over examples, studentised, paired"
    )
    relative_distance = Quantity("‖W − W₀‖/‖W₀‖, W₀ the earlier weights", kinds=("layer",), scale="log")
    weights = not_drawn("entries", kinds=("layer",))
    could_go_back = not_drawn(
        "layers that can be rewound together with a loss that rises by no more than `loss_bound`, at the upper end of "
        "its interval",
        labels={"loss_bound": "in nats per position; of regression, a share of the model's own loss"},
    )


_RANK = {"rank": "that of each matrix's update; 0 is no update of the matrices at all"}


class LowRankQuality(VariantOutputs, labels=_RANK):
    records = "how close the outputs would be with a low-rank update"

    recommended_rank = own_figure(
        "smallest of `ranks` with a mean KL of at most `kl_bound`", labels={"kl_bound": "in nats per position"}
    )
    energy_captured = own_figure(
        "Σ_{i≤rank} σᵢ² / ‖ΔW‖_F² over all matrices of the scope", kinds=("model", "layer", "component"),
        labels={"rank": "that of each matrix's update, from 1"}, scale="share",
    )  # fmt: skip
    stable_rank = not_drawn("‖ΔW‖_F²/σ₁²", kinds=("tensor",))
    rank_for_energy = not_drawn(
        "smallest rank that holds the share `energy` of ‖ΔW‖_F²", kinds=("tensor",), labels={"energy": "a share"}
    )
    decomposed = not_drawn("matrices whose update was decomposed")
    approximated = not_drawn(
        "those decomposed by randomised iteration: energies about 1 % low on pure noise, far less elsewhere"
    )
    unchanged = not_drawn("matrices that did not change")
    undecomposed = not_drawn("matrices whose ΔW is not finite: they keep their whole update and count in no energy")
