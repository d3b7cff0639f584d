"""What is recorded of adapters (PEFT)."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity
from learnscope.quantities.gradients import ORIGIN, STAGE
from learnscope.quantities.outputs import VariantOutputs
from learnscope.quantities.weights import Spectrum

_ADAPTER = {"adapter": "its name in PEFT", "family": "`lora`, `dora`, `adalora`, `vera`, …"}
_MODULE = ("module",)
_DORA = "for DoRA"
_MERGED = "for DoRA, with `merged_update`"
_SINCE = {**_ADAPTER, "since": "`previous` or `first` measurement"}
_INTRUDER = {**_ADAPTER, "k": "how many leading vectors", "epsilon": "the cosine that counts as no match"}
_VECTOR = {**_ADAPTER, "vector": "which of the vectors that the adapter trains"}


class AdapterSpectrum(Spectrum, kinds=_MODULE, labels=_ADAPTER):
    records = "spectra of the adapters' updates, and how far their directions have turned"

    rank = Quantity("r; null for a vector", kinds=_MODULE, labels=_ADAPTER, drawn="not")
    scaling = Quantity("what PEFT multiplies the update by", kinds=_MODULE, labels=_ADAPTER, drawn="not")
    active = Quantity("1 if the adapter is active, else 0", kinds=_MODULE, labels=_ADAPTER, drawn="not")
    merged = Quantity("1 if it is merged into its weight, else 0", kinds=_MODULE, labels=_ADAPTER, drawn="not")
    relative_norm = Quantity(
        "‖ΔW‖_F/‖W‖_F, W the weight that training began with (B₀A₀ of PiSSA and its like included)", kinds=_MODULE,
        labels=_ADAPTER, scale="log", drawn="not",
    )  # fmt: skip
    left_angle = Quantity(
        "largest principal angle between the span of ΔW's left singular vectors now and then", kinds=_MODULE,
        labels=_SINCE, unit="radians", drawn="not", when="with `drift`",
    )  # fmt: skip
    left_drift = Quantity(
        "√(mean sin²θ) of all principal angles of the left spans: 0 the same span, 1 orthogonal", kinds=_MODULE,
        labels=_SINCE, scale="share", drawn="not", when="with `drift`",
    )  # fmt: skip
    right_angle = Quantity(
        "the same angle of the right singular vectors", kinds=_MODULE, labels=_SINCE, unit="radians", drawn="not",
        when="with `drift`",
    )  # fmt: skip
    right_drift = Quantity(
        "the same drift of the right spans", kinds=_MODULE, labels=_SINCE, scale="share", drawn="not",
        when="with `drift`",
    )  # fmt: skip
    intruder_dimensions = Quantity(
        "how many of the `k` leading left singular vectors of W + ΔW (DoRA: of the merged weight) have a cosine below "
        "`epsilon` with all of W's", kinds=_MODULE, labels=_INTRUDER, source="arXiv 2410.21228",
        drawn="not", when="with `intruders`",
    )  # fmt: skip
    intruder_similarity = Quantity(
        "the smallest best match of these vectors", kinds=_MODULE, labels=_INTRUDER, source="arXiv 2410.21228",
        scale="share", drawn="not", when="with `intruders`",
    )  # fmt: skip
    magnitude_norm = Quantity("‖m‖", kinds=_MODULE, labels=_ADAPTER, drawn="not", when=_DORA)
    direction_norm = Quantity("‖W + ΔW‖_F", kinds=_MODULE, labels=_ADAPTER, drawn="not", when=_DORA)
    magnitude_direction_ratio = Quantity("‖m‖ / ‖W + ΔW‖_F", kinds=_MODULE, labels=_ADAPTER, drawn="not", when=_DORA)
    merged_update_norm = Quantity(
        "Frobenius norm of what merging adds to W, m∘(W + ΔW)/‖W + ΔW‖_rows − W", kinds=_MODULE, labels=_ADAPTER,
        scale="log", drawn="not", when=_MERGED,
    )  # fmt: skip
    merged_update_largest_sv = Quantity(
        "σ₁ of the same", kinds=_MODULE, labels=_ADAPTER, scale="log", drawn="not", when=_MERGED
    )
    merged_update_effective_rank = Quantity(
        "exp(−Σ p ln p), p = σ/Σσ, of the same", kinds=_MODULE, labels=_ADAPTER, drawn="not", when=_MERGED
    )
    merged_update_stable_rank = Quantity(
        "Σσ²/σ₁² of the same", kinds=_MODULE, labels=_ADAPTER, drawn="not", when=_MERGED
    )
    merged_update_nuclear_norm = Quantity(
        "Σσ of the same", kinds=_MODULE, labels=_ADAPTER, scale="log", drawn="not", when=_MERGED
    )
    importance_sum = Quantity(
        "sum of the triplets' importance", kinds=_MODULE, labels=_ADAPTER, drawn="not", when="for AdaLoRA"
    )
    allocated_rank = Quantity(
        "how many triplets are kept", kinds=_MODULE, labels=_ADAPTER, drawn="not", when="for AdaLoRA"
    )
    vector_norm = Quantity(
        "‖v‖ of a vector that the adapter trains", kinds=_MODULE, labels=_VECTOR, drawn="not",
        when="where an adapter trains vectors",
    )  # fmt: skip
    vector_mean = Quantity(
        "its mean", kinds=_MODULE, labels=_VECTOR, drawn="not", when="where an adapter trains vectors"
    )
    vector_std = Quantity(
        "its standard deviation over all entries (population)", kinds=_MODULE, labels=_VECTOR, drawn="not",
        when="where an adapter trains vectors",
    )  # fmt: skip
    vector_min = Quantity(
        "its smallest entry", kinds=_MODULE, labels=_VECTOR, drawn="not", when="where an adapter trains vectors"
    )
    vector_max = Quantity(
        "its largest entry", kinds=_MODULE, labels=_VECTOR, drawn="not", when="where an adapter trains vectors"
    )
    vector_change = Quantity(
        "‖v − v at the start‖", kinds=_MODULE, labels=_VECTOR, drawn="not", when="where an adapter trains vectors"
    )


class AdapterGradients(Quantities):
    records = "gradient norms of the parts of every adapter"

    norm = Quantity(
        "√Σg² of one part of one adapter; of a layer, a type of module (`component`) and the model, √Σ over its "
        "modules", kinds=("module", "layer", "component", "model"),
        labels={
            **_ADAPTER,
            "component": "the part: `lora_A`, `lora_B` (of embeddings as well; `lora_B.bias` with PEFT's `lora_bias`), "
            "`magnitude` (DoRA), `lora_E` (AdaLoRA), `lambda_b`, `lambda_d` (VeRA), `ia3_l`, `weight` and `bias` "
            "(LayerNorm tuning), PEFT's own name of it for a family that is not known",
            "stage": STAGE,
            "origin": ORIGIN,
        },
        scale="log", drawn="in a figure of its own",
    )  # fmt: skip


_CUT = {"cut": "`each` or `all`", "energy": "the share of ‖ΔW‖_F² that it keeps; 0 for no update at all"}


class AdapterTruncation(VariantOutputs, labels=_CUT):
    records = "how small the ranks of adapters could be, by the model's outputs"

    parameters_kept = Quantity(
        "share of the factors' parameters that these ranks would need", labels=_CUT, scale="share",
        drawn="in a figure of its own",
    )  # fmt: skip
    recommended_energy = Quantity(
        "the energy of the cut that is recommended; null where none is", labels={"cut": "`each` or `all`"},
        scale="share", drawn="in a figure of its own",
    )  # fmt: skip
    recommended_parameters = Quantity(
        "its `parameters_kept`", labels={"cut": "`each` or `all`"}, scale="share", drawn="not"
    )
    recommended_rank = Quantity(
        "the recommended r; 0: this adapter does nothing", kinds=_MODULE, labels=_ADAPTER, drawn="not"
    )
    rank = Quantity("r now", kinds=_MODULE, labels=_ADAPTER, drawn="not")
    directions = Quantity(
        "how many singular values are above 1e-6 of the largest", kinds=_MODULE, labels=_ADAPTER, drawn="not"
    )
