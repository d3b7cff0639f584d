"""What is recorded of adapters (PEFT)."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, own_figure
from learnscope.quantities.gradients import ORIGIN, STAGE
from learnscope.quantities.outputs import VariantOutputs
from learnscope.quantities.weights import Spectrum

_ADAPTER = {"adapter": "its name in PEFT", "family": "`lora`, `dora`, `adalora`, `vera`, …"}
_MODULE = ("module",)
_SINCE = {**_ADAPTER, "since": "`previous` or `first` measurement"}
_INTRUDER = {**_ADAPTER, "k": "how many leading vectors", "epsilon": "the cosine that counts as no match"}
_VECTOR = {**_ADAPTER, "vector": "which of the vectors that the adapter trains"}
_number = partial(Quantity, kinds=_MODULE, labels=_ADAPTER, drawn="not")
_drift = partial(Quantity, kinds=_MODULE, labels=_SINCE, drawn="not", when="with `drift`")
_intruder = partial(
    Quantity, kinds=_MODULE, labels=_INTRUDER, drawn="not", source="arXiv 2410.21228", when="with `intruders`"
)
_dora = partial(Quantity, kinds=_MODULE, labels=_ADAPTER, drawn="not", when="for DoRA")
_merged = partial(Quantity, kinds=_MODULE, labels=_ADAPTER, drawn="not", when="for DoRA, with `merged_update`")
_adalora = partial(Quantity, kinds=_MODULE, labels=_ADAPTER, drawn="not", when="for AdaLoRA")
_vector = partial(Quantity, kinds=_MODULE, labels=_VECTOR, drawn="not", when="where an adapter trains vectors")


class AdapterSpectrum(Spectrum, kinds=_MODULE, labels=_ADAPTER):
    records = "spectra of the adapters' updates, and how far their directions have turned"

    rank = _number("r; null for a vector")
    scaling = _number("PEFT's factor of the update")
    active = _number("1 if the adapter is active, else 0")
    merged = _number("1 if it is merged into its weight, else 0")
    relative_norm = _number(
        "‖ΔW‖_F/‖W‖_F, W the weight before training (with B₀A₀, for PiSSA and similar)", scale="log"
    )
    left_angle = _drift(
        "largest principal angle between the spans of ΔW's left singular vectors now and then", unit="radians"
    )
    left_drift = _drift(
        "√(mean sin²θ) over the principal angles of the left spans: 0 the same span, 1 orthogonal", scale="share"
    )
    right_angle = _drift("the same angle of the right singular vectors", unit="radians")
    right_drift = _drift("the same drift of the right spans", scale="share")
    intruder_dimensions = _intruder(
        "how many of the `k` leading left singular vectors of W + ΔW (DoRA: the merged weight) have a cosine "
        "below `epsilon` with all of W's; W as it is stored, as in PEFT's `reduce_intruder_dimension`"
    )
    intruder_similarity = _intruder("smallest over these vectors of the largest cosine with one of W's", scale="share")
    magnitude_norm = _dora("‖m‖")
    direction_norm = _dora("‖W + ΔW‖_F")
    magnitude_direction_ratio = _dora("‖m‖ / ‖W + ΔW‖_F")
    merged_update_norm = _merged("Frobenius norm of what merging adds to W, m∘(W + ΔW)/‖W + ΔW‖_rows − W", scale="log")
    merged_update_largest_sv = _merged("σ₁ of the same", scale="log")
    merged_update_effective_rank = _merged("exp(−Σ p ln p), p = σ/Σσ, of the same")
    merged_update_stable_rank = _merged("Σσ²/σ₁² of the same")
    merged_update_nuclear_norm = _merged("Σσ of the same", scale="log")
    importance_sum = _adalora("sum of the triplets' importance")
    allocated_rank = _adalora("how many triplets are kept")
    vector_norm = _vector("‖v‖ of a vector that the adapter trains")
    vector_mean = _vector("its mean")
    vector_std = _vector("its standard deviation over all entries (population)")
    vector_min = _vector("its smallest entry")
    vector_max = _vector("its largest entry")
    vector_change = _vector("‖v − v at the start‖")


class AdapterGradients(Quantities):
    records = "gradient norms of the parts of every adapter"

    norm = own_figure(
        "√Σg² of one part of an adapter; for a layer, a type of module (`component`) and the model over all their "
        "modules", kinds=("module", "layer", "component", "model"), labels={
            **_ADAPTER,
            "component": "the part: `lora_A`, `lora_B` (of embeddings as well; `lora_B.bias` with PEFT's `lora_bias`), "
            "`magnitude` (DoRA), `lora_E` (AdaLoRA), `lambda_b`, `lambda_d` (VeRA), `ia3_l`, `weight` and `bias` "
            "(LayerNorm tuning), PEFT's own name of it for a family that is not known",
            "stage": STAGE,
            "origin": ORIGIN,
        }, scale="log",
    )  # fmt: skip


_CUT = {"cut": "`each` or `all`", "energy": "the share of ‖ΔW‖_F² that it keeps; 0 for no update at all"}


class AdapterTruncation(VariantOutputs, labels=_CUT):
    records = "how small the ranks of adapters could be, by the model's outputs"

    parameters_kept = own_figure(
        "share of the factors' parameters that these ranks would need", labels=_CUT, scale="share"
    )
    recommended_energy = own_figure(
        "the `energy` of the recommended cut; null if there is none", labels={"cut": "`each` or `all`"}, scale="share"
    )
    recommended_parameters = not_drawn("its `parameters_kept`", labels={"cut": "`each` or `all`"}, scale="share")
    recommended_rank = _number("the recommended r; 0: this adapter does nothing")
    rank = _number("r now")
    directions = _number("how many singular values are above 1e-6 of the largest")
