"""The cuts beyond which a number becomes a finding. All are options; none is hidden in an analysis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

Share = float
"""Below 1."""
Factor = float
"""Above 1."""


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Where findings begin. Pass one to `run.findings(Cuts(off_median=1000))` to move a cut."""

    off_median: Factor = 100.0
    """A layer's gradient is off when both ‖g‖/‖W‖ and ‖g‖ are this many times off the median trained layer's."""
    measurements: int = 3
    """Consecutive measurements for which a layer must be beyond a cut."""
    vanishing_measurements: int = 5
    """The same for a gradient that vanishes."""
    small_update: Factor = 10.0
    """A layer hardly moves when its ‖Δ‖/‖W‖ is this many times below the other layers'."""
    large_update: Share = 0.1
    """‖Δ‖/‖W‖ of a single step from which an exploding gradient does harm."""
    gradient_growth: Factor = 100.0
    """A layer's gradient explodes when it stays this many times above its own past, and the loss does not fall."""
    min_layers: int = 3
    """Layers with a gradient that a median needs to mean something."""
    noisy_share: Share = 0.01
    """Share of all labels that must look wrong beyond what hard examples explain."""
    overlap_share: Share = 0.01
    """Share of the training rows that are in the holdout, bit for bit, from which it is a warning: rows of few
    different numbers may be the same by chance."""
    duplicate_share: Share = 0.3
    """Share of training rows seen before in the same step or epoch from which the data are called duplicated."""
    lost_share: Share = 0.25
    """A loss diverges when it ends this share of all that it had gained above its best level, and stays there."""
    blown_up: Factor = 10.0
    """Times its size at the start from which a loss diverges where there are several optimizers: theirs may rise."""
    starved_player: Share = 1e-3
    """Share of its start below which the gradient of one optimizer has gone, while that of another has not."""
    plateau_share: Share = 0.6
    """Share of the run for which the loss must have stayed for a plateau."""
    plateau_rest: Share = 0.1
    """Share of its start below which a loss is called learned, not stuck on a plateau."""
    little_gain: Share = 0.02
    """Share of its start that a loss must have gained not to be flat."""
    idle_share: Share = 0.1
    """Share of the measurements at learning rate 0 from which it is a finding: a schedule may end at 0."""
    fallen_rate: Share = 1e-2
    """Share of its highest value below which a learning rate has fallen to next to nothing, if the steps since could
    not change the loss either."""
    idle_reach: Share = 0.01
    """The learning rate is too low when all steps together could change the loss by less than this share of it."""
    short_way: Share = 0.05
    """Σ‖Δ‖/‖W‖ of a whole run below which the weights have hardly moved."""
    shortest_way: Share = 0.01
    """The same below which nothing could have been seen of it, if the steps could change the loss by `slow_gain` at
    most."""
    straight_way: Share = 0.2
    """What the loss has lost over Σ‖Δ‖‖g‖, from which the steps have not yet met a bend: they could be larger."""
    long_momentum: Share = 0.99
    """Momentum from which a step is mostly made of old gradients."""
    large_epsilon: Factor = 10.0
    """Times the root mean square of the gradient's entries from which Adam's ε decides the step."""
    slow_gain: Share = 0.1
    """Share of its start that a loss gains at most where an ε is too large for it to be learned."""
    heavy_dropout: Share = 0.8
    """Probability of a dropout from which it may be what keeps a model from learning."""
    weak_elasticity: Share = 0.01
    """‖g‖‖W‖ over the loss below which it is the gradient that is too small, not the learning rate."""
    large_step: float = 0.3
    """‖Δ‖/‖W‖ of one step from which it is too large for a loss that rises."""
    overshoot: Factor = 4.0
    """‖Δ‖‖g‖ of one step over the loss, from which it is too large for a loss that rises: a quadratic loss diverges
    from 4 on."""
    clipped_to: Share = 0.01
    """Clipping is hard when half of the steps keep at most this share of their gradient."""
    decay_of_update: Share = 0.3
    """Weight decay is strong when this share of the change of the weights is decay."""
    decay_of_gradient: Factor = 3.0
    """The same for decay that is added to the gradient: λ‖W‖ is this many times ‖g‖."""
    penalty_share: Share = 0.3
    """Share of the logged loss at the start that is not the loss function's, from which it may be a penalty."""
    shrunk_weights: Share = 0.7
    """Share of its start to which ‖W‖ has shrunk, for weight decay to have done harm."""
    one_class_share: Share = 0.95
    """Share of one class among the targets of a step, the median, from which batches have one class each."""
    batch_targets: int = 8
    """Targets a step below which a batch of one class is chance."""
    well_learned: Share = 0.9
    """Accuracy on training batches, or share of the loss gained, from which a run has learned all the same."""
    stays_at_chance: Share = 0.15
    """Distance from what guessing reaches within which a loss has stayed there."""
    holdout_still: Share = 0.02
    """Share by which a holdout loss changed at most over a run for it not to have followed the training."""
    high_start: Factor = 5.0
    """Times what guessing reaches, from which a first loss says that the start is wrong."""
    wide_outputs: Factor = 10.0
    """Times the size of the targets, from which first outputs are too large, for numbers."""
    wide_inputs: Factor = 10.0
    """Standard deviation of inputs from which they are not scaled: weights are drawn for inputs of about 1."""
    large_targets: Factor = 30.0
    """Size of targets, √(mean² + variance), from which they are not scaled, if outputs do not come near it."""
    far_inputs: Factor = 50.0
    """Largest |input| from which they are not scaled, if it lies far outside of their spread."""
    summed: Factor = 4.0
    """Times the loss of one target, from which the trained loss is a sum."""
    surely: Share = 0.99
    """Share of the rows from which something holds for all of them."""
    most_classes: int = 100
    """Classes up to which each is expected to be seen; of a vocabulary many are not."""
    near_a_bound: Share = 0.02
    """Distance from an activation's bound, in units of the targets' spread, at which outputs end there."""
    holdout_measurements: int = 4
    """Holdout measurements below which nothing is said about overfitting."""
    overfitting_rise: float = 0.02
    """Relative rise of the holdout loss above its best from which it is a warning."""
    overfitting_critical: float = 0.25
    """Relative rise of the holdout loss above its best from which it is critical."""
    generalisation_gap: Share = 0.4
    """Share of its first value that the training loss has lost and the holdout loss has not, from which only training
    data were learned. In sound trainings it was up to 0.33, and above 0.2 only where nine of ten are right."""
    chance_examples: int = 40
    """Examples of the holdout, and of training batches, below which nothing is said about guessing: of 40, guessing one
    of two classes gets between 35 % and 65 % right."""
    stale_mean: float = 0.3
    """Distance of a batch norm's running mean from that of the batches, in standard deviations, from which it is
    stale; at least what batches of this size differ by from each other."""
    stale_scale: float = 0.5
    """The same for the running variance: |ln(running/batch)|."""
    stale_steps: int = 50
    """Steps in which running statistics have settled: with the usual momentum of 0.1, 0.5 % of their start is left."""
    empty_code: Share = 0.2
    """Deviation of an autoencoder's outputs over examples, in units of its inputs', below which all are the same."""
    collapsed_apart: Share = 4e-4
    """1 − the mean cosine of the outputs of two examples, below which they are the same."""
    collapsed_size: Share = 0.01
    """Share of their size at the start below which outputs have shrunk to nothing."""
    collapsed_share: Share = 0.1
    """Share of its start to which the distance of outputs, and the loss, has fallen in a collapse."""
    worse_holdout: Factor = 1.5
    """Holdout loss over training loss at the end from which a holdout is bad."""
    other_scale: Factor = 3.0
    """Ratio of the standard deviations of the inputs from which holdout and training are of different scales."""
    outlying_batch: Factor = 30.0
    """Times the median batch's size, from which the inputs or targets of a batch are of another kind."""
    other_level: float = 1.0
    """Distance of their means, in standard deviations, from which the same is said."""
    shortcut_gap: float = 0.1
    """Accuracy on new training examples minus that on the holdout, at the lower end of the interval, from which they
    carry something that the holdout lacks."""
    group_measurements: int = 6
    """Measurements of two groups of weights below which their updates are not compared."""
    slow_head: float = 3.0
    """A head is slow when the backbone's ‖Δ‖/‖W‖ is this many times its own, at the lower end of the interval."""
    slow_group: Factor = 1000.0
    """Times below the highest that the learning rate of the output layer's group is, from which it may be what keeps a
    model from learning. In sound trainings groups were at most 100 times apart."""
    frozen_measurements: int = 1
    """Measurements without any changed bit after which a parameter counts as not moving."""
    dead_share: Share = 0.5
    """Share of dead units above which a layer is a finding."""
    saturated_share: Share = 0.5
    """Share of saturated units above which a layer is a finding."""
    edge_band: float = 0.1
    """Distance from 1 of the ratio of sharpness to its threshold within which training is at the edge of stability."""
    absorbed_share: float = 0.5
    """Updates are lost to rounding when the lower end of the interval of `absorbed_share` is above this."""
    decay_absorbed_share: float = 0.99
    """Weight decay has no effect when it leaves this share of the entries as they were."""
    sparse_kept_share: Share = 0.1
    """Share of the entries up to which an update counts as sparse."""
    quality_kl: float = 1e-3
    """Mean KL in nats up to which a model with a sparse update is near enough to the model itself."""
    memorised_accuracy: float = 0.99
    """Training accuracy from which the training data count as memorised."""
    generalised_accuracy: float = 0.95
    """Test accuracy from which the model counts as generalising."""
    grokking_gap: Share = 0.2
    """Training minus test accuracy when training data are first memorised, from which a late rise is grokking."""
    spurious_gap: Share = 0.1
    """Accuracy where the group suggests the class minus that where it suggests another, at the lower end of the
    interval, from which the model follows the group."""
    spurious_critical: float = 0.5
    """The same, from which it is critical."""
    order_measurements: int = 6
    """Measurements below which nothing is said about which layer moved first, or which group was learned first."""
    order_spread: Share = 0.1
    """Share of the measured steps that must lie between the first and the last to call one the first; more than one
    interval between measurements too."""
    moved_distance: float = 0.05
    """1 − CKA with its first features from which on a layer has moved."""
    learned_rise: float = 0.1
    """Rise of its accuracy from which on a group of examples has been learned."""
    group_examples: int = 20
    """Examples of a group below which nothing is said about when it was learned."""
    spare_rank: Share = 0.5
    """Share of the adapters' parameters that lower ranks need, up to which ranks are called large."""
    idle_rank: Share = 0.35
    """Effective rank of an adapter as a share of its rank, up to which the rank is called large if none was tried."""
    full_rank: Share = 0.9
    """The same, from which the rank is called exhausted."""
    work_share: Share = 0.8
    """Share of what all adapters add that the layers which do the work hold."""
    few_layers: Share = 0.34
    """Share of the layers up to which those are few."""
    work_layers: int = 4
    """Layers with adapters below which nothing is said about where the work is done."""
    audit_tokens_per_second: float = 1000.0
    """Tokens (or examples, where inputs have no tokens) a second from which a model suits real-time use and servers."""
    audit_memory_bytes: float = 100e6
    """Bytes of weights and of what running them takes, up to which a model suits edge devices."""
    audit_robustness_gap: Share = 0.1
    """Accuracy that attacks may take for a model to count as robust, judged at the ends of the interval."""
    audit_kl: float = 0.01
    """Mean KL in nats up to which a quantised or noisy model counts as the model itself, at the upper end of the
    interval."""
    audit_additivity: Factor = 2.0
    """Factor from which the damage of units alone says too little about the damage of all together."""
    audit_part_share: Share = 0.5
    """Share of a model's bytes, or of its time, from which one part of it dominates."""
    audit_zero_gradients: Share = 0.1
    """Share of exactly zero gradients from which an attack by gradients may not have attacked."""
    names_listed: int = 6
    """Names that a sentence lists before it says how many more there are."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            integer = field.type == "int"
            if isinstance(value, bool) or not isinstance(value, int if integer else int | float):
                raise TypeError(f"{field.name}={value!r}: {'a whole number' if integer else 'a number'} is needed")
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{field.name}={value!r}: it must be positive and finite")
            if field.type == "Share" and value >= 1:
                raise ValueError(f"{field.name}={value:g}: a share below 1, such as 0.5")
            if field.type == "Factor" and value <= 1:
                raise ValueError(f"{field.name}={value:g}: a factor above 1, such as {field.default:g}")
        for name, bound in (
            ("overfitting_critical", "overfitting_rise"),
            ("spurious_critical", "spurious_gap"),
        ):
            value, least = getattr(self, name), getattr(self, bound)
            if value < least:
                raise ValueError(f"{name}={value:g} must be above {bound}={least:g}")


def known_cuts(saved: Mapping[str, float]) -> Cuts:
    """The cuts of a file, without those that this version no longer has."""
    names = {field.name for field in fields(Cuts)}
    return Cuts(**{name: value for name, value in saved.items() if name in names})  # type: ignore[arg-type]
