"""What is recorded of a model with some of its weights in fewer bits."""

from __future__ import annotations

from dataclasses import replace

from learnscope.quantities.base import Quantities, Quantity, with_interval
from learnscope.quantities.outputs import VariantOutputs

_WIDTH = {"bits": "the width that the unit alone is at"}
_UNIT = ("unit",)


def _of_unit(quantity: Quantity) -> Quantity:
    return replace(quantity, kinds=_UNIT, labels=_WIDTH)


class BitSensitivity(Quantities):
    records = "what each unit loses alone in fewer bits"

    kl = _of_unit(VariantOutputs.kl)
    kl_median = _of_unit(VariantOutputs.kl_median)
    kl_p99 = _of_unit(VariantOutputs.kl_p99)
    top1_agree = _of_unit(VariantOutputs.top1_agree)
    cosine = _of_unit(VariantOutputs.cosine)
    mse = _of_unit(VariantOutputs.mse)
    bytes = Quantity(
        "of the unit at these bits, scales and zero points included", kinds=_UNIT, labels=_WIDTH, unit="bytes",
        better="lower", drawn="not",
    )  # fmt: skip
    weights = Quantity("entries", kinds=_UNIT, drawn="not")
    original_bytes = Quantity("as stored", kinds=_UNIT, unit="bytes", drawn="not")


_MIX = ("configuration",)


class BitWidths(VariantOutputs, kinds=_MIX):
    records = "what configurations of bits lose and save"

    kl, kl_low, kl_high = with_interval(
        replace(
            VariantOutputs.kl, meaning='KL(model ‖ variant) per position: mean; exactly 0 for "original"', kinds=_MIX
        ),
        "over examples drawn again",
    )
    loss = Quantity("on the targets", kinds=_MIX, better="lower", drawn="not")
    loss_change, loss_change_low, loss_change_high = with_interval(
        Quantity("less the model's own loss", kinds=_MIX, better="lower", drawn="in a figure of its own"),
        "over examples drawn again, paired",
    )
    perplexity = Quantity(
        "exp of the loss", kinds=_MIX, better="lower", drawn="not", when="for models that predict tokens"
    )
    accuracy = Quantity(
        "on the targets", kinds=_MIX, better="higher", scale="share", drawn="in a figure of its own", when="for classes"
    )
    block_bits = Quantity(
        "bits an entry of the blocks' units, scales and zero points included", kinds=_MIX, unit="bits", better="lower",
        drawn="in a figure of its own",
    )  # fmt: skip
    model_bits = Quantity(
        "bits an entry of the whole model, scales and zero points included", kinds=_MIX, unit="bits", better="lower",
        drawn="in a figure of its own",
    )  # fmt: skip
    packed_bytes = Quantity(
        "of the whole model; tied weights once", kinds=_MIX, unit="bytes", better="lower", scale="log",
        drawn="in a figure of its own",
    )  # fmt: skip
    original_bytes = Quantity("of the whole model as stored; tied weights once", kinds=_MIX, unit="bytes", drawn="not")
    compression = Quantity(
        "`original_bytes` / `packed_bytes`", kinds=_MIX, better="higher", drawn="in a figure of its own"
    )
    on_frontier = Quantity(
        "1 if nothing smaller is measurably as good, see `learnscope.tensor.bits.allocation.pareto`", kinds=_MIX,
        drawn="in a figure of its own",
    )  # fmt: skip
    additivity = Quantity(
        "Σ of the damages of single units / damage of all together", kinds=_MIX, drawn="not",
        when="where `BitSensitivity` measured them at this moment on these examples",
    )  # fmt: skip


class BitOptimum(BitWidths):
    records = "the mix of bits that loses least within a budget"

    additivity = Quantity(
        "Σ of the damages of single units / damage of all together, on the half searched on", kinds=_MIX, drawn="not",
        when="of `optimal`, where single units were measured here",
    )  # fmt: skip
    chosen_bits = Quantity(
        "what the search chose; the bits it is stored in where it stays as it is", kinds=_UNIT, unit="bits",
        drawn="not",
    )  # fmt: skip
    budget_bytes = Quantity("what was asked for", unit="bytes", drawn="not", when="unless `max_kl` is given")
    budget_kl = Quantity("what was asked for", unit="nats", drawn="not", when="with `max_kl`")
    mixed_wins = Quantity("1 if the mix is recommended, else 0", drawn="not")
