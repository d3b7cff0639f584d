"""What is recorded of the time and the memory that a finished model takes."""

from __future__ import annotations

from functools import partial

from learnscope.quantities.base import Quantities, Quantity, not_drawn, with_interval

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
    "process": "`own`: the caller's, or an accelerator's allocator; `fresh`: one that loads the model and runs it once",
    "batch": "examples of the data's first batch",
    "length": "tokens of each",
}
_bytes = partial(Quantity, unit="bytes", better="lower", drawn="in a figure of its own")


_RUN = {
    "phase": "`prefill`: a text is read into the cache; `forward`: models without a cache",
    "batch": "examples in it",
    "length": "tokens of each; 0: inputs that have no length",
}


class MemoryUse(Quantities):
    records = "weights, cache and activations apart, by batch and length"

    parameters = not_drawn("how many numbers; tied ones once, under the first of their names", kinds=("model", "part"))
    model_bytes = _bytes("of parameters and buffers", scale="log")
    bytes = _bytes("of parameters and buffers of embedding, attention, mlp, norm, head, other", kinds=("part",))
    cache_bytes = _bytes("of the model's cache of keys and values after the text; 0: it has none", labels=_RUN)
    activation_bytes = _bytes(
        "the most that the allocator held at once during the pass, above the weights and without the cache", labels=_RUN
    )
    read_parameters = not_drawn("that every token is multiplied with: all but tables in which it looks up a row")
    read_bytes = not_drawn("of these, and of buffers: what decoding one token has to read", unit="bytes")
    peak_bytes = _bytes(
        "high-water mark of the process during the pass", labels=_PROCESS, scale="log", when="with process=True"
    )
    run_bytes = _bytes("that mark above what was in use before", labels=_PROCESS, scale="log", when="with process=True")


_exported = partial(Quantity, kinds=("exported",), drawn="not")
_decoded = partial(_exported, when="of causal language models with a cache")
_BY_RANKS = "by ranks of the pairs, from six of them on"


class ExportedSpeed(Quantities):
    records = "real speed of weights held in 8 or 4 bits"

    latency_p50 = _exported("median of a pass", unit="s", better="lower")
    latency_mean = _exported("of a pass", unit="s", better="lower")
    latency_n = _exported("passes timed")
    examples_per_second = _exported("by the mean", better="higher")
    tokens_per_second = _exported("by the mean, without padding", better="higher", when="where inputs are token ids")
    speed_up, speed_up_low, speed_up_high = with_interval(
        _exported("median over pairs of passes of the model's seconds / the copy's", better="higher"), _BY_RANKS
    )
    decode_latency_p50 = _decoded("median of one more token after the first example", unit="s", better="lower")
    decode_latency_n = _decoded("tokens timed")
    decode_speed_up, decode_speed_up_low, decode_speed_up_high = with_interval(
        _decoded("as `speed_up`, of decoding at batch 1", better="higher"), _BY_RANKS
    )
    weight_bytes = _exported("of parameters and buffers as they are held", unit="bytes", better="lower")
    kl = _exported("KL(model ‖ copy) of the outputs, mean per position", unit="nats", better="lower")
    mse = _exported("of the copy's outputs, from the model's", better="lower")
