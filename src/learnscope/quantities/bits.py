"""What is recorded of a model with some of its weights in fewer bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, with_interval
from learnscope.quantities.outputs import VariantOutputs

_WIDTH = {"bits": "the width that the unit alone is at"}
_UNIT = ("unit",)
_of_unit = partial(Quantity, kinds=("unit",), drawn="not")


def _unit_variant(quantity: Quantity) -> Quantity:
    return replace(quantity, kinds=_UNIT, labels=_WIDTH)


class BitSensitivity(Quantities):
    records = "what each unit loses alone in fewer bits"

    kl = _unit_variant(VariantOutputs.kl)
    kl_median = _unit_variant(VariantOutputs.kl_median)
    kl_p99 = _unit_variant(VariantOutputs.kl_p99)
    top1_agree = _unit_variant(VariantOutputs.top1_agree)
    cosine = _unit_variant(VariantOutputs.cosine)
    mse = _unit_variant(VariantOutputs.mse)
    bytes = _of_unit(
        "of the unit at these bits, with scales and zero points", labels=_WIDTH, unit="bytes", better="lower"
    )
    weights = _of_unit("entries")
    original_bytes = _of_unit("as stored", unit="bytes")


_MIX = ("configuration",)
_of_mix = partial(Quantity, kinds=_MIX, drawn="not")
_mix_figure = partial(Quantity, kinds=_MIX, drawn="in a figure of its own")


class BitWidths(VariantOutputs, kinds=_MIX):
    records = "what configurations of bits lose and save"

    kl, kl_low, kl_high = with_interval(
        _mix_figure('KL(model ‖ variant) per position: mean; 0 for "original"', unit="nats", scale="log"),
        "over examples, studentised",
    )
    kl_p999 = _of_mix(
        "KL(model ‖ variant) per position: 99.9th percentile; not measured with fewer than 2,995 positions, of which "
        "the largest is above it in 95 % of cases", unit="nats", scale="log",
    )  # fmt: skip
    loss = _of_mix("on the targets", better="lower")
    loss_change, loss_change_low, loss_change_high = with_interval(
        _mix_figure("the loss minus the model's own", better="lower"), "over examples, studentised, paired"
    )
    perplexity = _of_mix("exp of the loss", better="lower", when="for models that predict tokens")
    accuracy = _mix_figure("on the targets", better="higher", scale="share", when="for classes")
    block_bits = _mix_figure(
        "bits per entry of the blocks' units, with scales and zero points", unit="bits", better="lower"
    )
    model_bits = _mix_figure(
        "bits per entry of the whole model, with scales and zero points", unit="bits", better="lower"
    )
    packed_bytes = _mix_figure("of the whole model; tied weights once", unit="bytes", better="lower", scale="log")
    original_bytes = _of_mix("of the whole model as stored; tied weights once", unit="bytes")
    compression = _mix_figure("`original_bytes` / `packed_bytes`", better="higher")
    on_frontier = _mix_figure("1 if nothing smaller is measurably as good (`learnscope.tensor.bits.allocation.pareto`)")
    additivity = _of_mix(
        "Σ of the damages of single units / damage of all together", when="where `BitSensitivity` measured them as well"
    )


class BitOptimum(BitWidths):
    records = "the mix of bits that loses least within a budget"

    additivity = _of_mix(
        "Σ of the damages of single units / damage of all together, on the half used for the search",
        when="of `optimal`, where single units were measured here",
    )  # fmt: skip
    chosen_bits = _of_unit("the bits that the search chose; those it is stored in if it is not changed", unit="bits")
    budget_bytes = not_drawn("the budget", unit="bytes", when="unless `max_kl` is given")
    budget_kl = not_drawn("the budget", unit="nats", when="with `max_kl`")
    mixed_wins = not_drawn("1 if the mix is recommended, else 0")


class BitFrontier(BitWidths):
    records = "all ways to store a model in fewer bits on one frontier, and which to use"

    on_frontier = _mix_figure("1 if nothing else has as few bytes and as little damage, and less of one")
    change, change_low, change_high = with_interval(
        _of_mix("growth of the perplexity (a share), or the share of answers that are no longer right", better="lower"),
        "over examples, studentised, paired",
    )
    search_damage = _of_mix(
        "KL (mean squared error for regression) on the half used for the search", better="lower", scale="log"
    )
    chosen_bits = _of_unit("the bits that are recommended; those it is stored in if it is not changed", unit="bits")
    budget_bytes = not_drawn("the budget", unit="bytes", when="with `max_bytes`")
    budget_kl = not_drawn("the budget", unit="nats", when="with `max_kl`")


_STORED = {"configuration": 'the way in which the model is stored; "original": as it is'}
_of_text = partial(Quantity, kinds=("text",), drawn="not")


class SharedTexts(Quantities):
    records = "the loss of ways to store a model on texts that other models read as well"

    text_loss = _of_text("Σ of the losses of the positions that count", labels=_STORED, unit="nats", better="lower")
    text_right = _of_text("positions whose prediction is right", labels=_STORED, better="higher", when="for classes")
    text_positions = _of_text("positions that count")
    text_bytes = _of_text("UTF-8 bytes that these positions stand for, the same for all models", unit="bytes")
    loss = _of_mix("Σ of the losses / Σ of the positions", better="lower")
    packed_bytes = _of_mix("of the whole model; tied weights once", unit="bytes", better="lower", scale="log")
