"""What is recorded of the time and the memory that a finished model takes."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn

_SETTING = {
    "phase": "`forward`: over a batch; `prefill`: a text into a cache of keys and values; `decode`: one new token",
    "batch": "examples in it",
    "length": "tokens a row, for `decode` those that are cached; 0: inputs that have no length",
    "main": "true for the data's own first batch",
}
_latency = partial(Quantity, labels=_SETTING, unit="s", better="lower", scale="log", drawn="in a figure of its own")
_rate = partial(Quantity, labels=_SETTING, better="higher", scale="log", drawn="not")
_rate_figure = partial(Quantity, labels=_SETTING, better="higher", scale="log", drawn="in a figure of its own")


class InferenceSpeed(Quantities):
    records = "latency and throughput"

    latency_mean = _latency("of a pass")
    latency_p50 = _latency("median of a pass, by nearest rank")
    latency_p95 = _latency("95th percentile, by nearest rank", when="from 59 passes on: fewer give no upper bound")
    latency_p99 = _latency("99th percentile, by nearest rank", when="from 299 passes on")
    latency_n = not_drawn("passes timed", labels=_SETTING)
    latency_warmup = not_drawn("passes run before", labels=_SETTING)
    batches_per_second = _rate("at the mean latency")
    examples_per_second = _rate_figure("at the mean latency")
    tokens_per_second = _rate_figure("tokens without padding, at the mean latency", when="where inputs are token ids")
    flops = not_drawn(
        "of matrix products, convolutions, attention (causal or not); a multiply-add is 2", labels=_SETTING, scale="log"
    )
    flops_per_second = _rate("`flops` at the mean latency")


_seconds = partial(Quantity, unit="s", better="lower", drawn="in a figure of its own")


class LayerTimes(Quantities):
    records = "where the time of a pass goes"

    self_seconds = _seconds("in a module's own code, not in modules it calls; median over passes", kinds=("module",))
    total_seconds = _seconds(
        "self times of a module and all that it calls (recursion once), of a layer, of the pass",
        kinds=("module", "layer", "model"),
    )
    calls = not_drawn("in one pass", kinds=("module",))


_PROCESS = {
    "process": "`own`: the caller's, or an accelerator's allocator; `fresh`: one that loads the model and runs it once"
}
_bytes = partial(Quantity, unit="bytes", better="lower", drawn="in a figure of its own")


class MemoryUse(Quantities):
    records = "size by part, and the peak of a pass"

    parameters = not_drawn("how many numbers; tied ones once, under the first of their names", kinds=("model", "part"))
    model_bytes = _bytes("of parameters and buffers", scale="log")
    bytes = _bytes("of parameters and buffers of embedding, attention, mlp, norm, head, other", kinds=("part",))
    peak_bytes = _bytes("the most memory during the pass", labels=_PROCESS, scale="log")
    run_bytes = _bytes("the peak above what was in use before the pass", labels=_PROCESS, scale="log")


_exported = partial(Quantity, kinds=("exported",), drawn="not")


class ExportedSpeed(Quantities):
    records = "real speed of weights held in 8 or 4 bits"

    latency_p50 = _exported("median of a pass", unit="s", better="lower")
    latency_mean = _exported("of a pass", unit="s", better="lower")
    latency_n = _exported("passes timed")
    examples_per_second = _exported("by the mean", better="higher")
    tokens_per_second = _exported("by the mean, without padding", better="higher", when="where inputs are token ids")
    speed_up = _exported("median of the model / median of the copy", better="higher")
    weight_bytes = _exported("of parameters and buffers as they are held", unit="bytes", better="lower")
    kl = _exported("KL(model ‖ copy) of the outputs, mean per position", unit="nats", better="lower")
    mse = _exported("of the copy's outputs, from the model's", better="lower")
