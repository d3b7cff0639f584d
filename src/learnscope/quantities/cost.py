"""What is recorded of the time and the memory that a finished model takes."""

from __future__ import annotations

from learnscope.quantities.base import Quantities, Quantity

_SETTING = {
    "phase": "`forward`: over a batch; `prefill`: a text into a cache of keys and values; `decode`: one new token",
    "batch": "examples in it",
    "length": "tokens a row, for `decode` those that are cached; 0: inputs that have no length",
    "main": "true for the data's own first batch",
}


class InferenceSpeed(Quantities):
    records = "latency and throughput"

    latency_mean = Quantity(
        "of a pass", labels=_SETTING, unit="s", better="lower", scale="log", drawn="in a figure of its own"
    )
    latency_p50 = Quantity(
        "median of a pass, by nearest rank", labels=_SETTING, unit="s", better="lower", scale="log",
        drawn="in a figure of its own",
    )  # fmt: skip
    latency_p95 = Quantity(
        "95th percentile, by nearest rank", labels=_SETTING, unit="s", better="lower", scale="log",
        drawn="in a figure of its own", when="from 59 passes on, of which an upper bound needs so many",
    )  # fmt: skip
    latency_p99 = Quantity(
        "99th percentile, by nearest rank", labels=_SETTING, unit="s", better="lower", scale="log",
        drawn="in a figure of its own", when="from 299 passes on",
    )  # fmt: skip
    latency_n = Quantity("passes timed", labels=_SETTING, drawn="not")
    latency_warmup = Quantity("passes run before", labels=_SETTING, drawn="not")
    batches_per_second = Quantity("at the mean latency", labels=_SETTING, better="higher", scale="log", drawn="not")
    examples_per_second = Quantity(
        "at the mean latency", labels=_SETTING, better="higher", scale="log", drawn="in a figure of its own"
    )
    tokens_per_second = Quantity(
        "tokens that are no padding, at the mean latency", labels=_SETTING, better="higher", scale="log",
        drawn="in a figure of its own", when="where inputs are token ids",
    )  # fmt: skip
    flops = Quantity(
        "of products of matrices, convolutions and attention in a pass; two a multiplication and addition, a causal "
        "mask saving nothing", labels=_SETTING, scale="log", drawn="not",
    )  # fmt: skip
    flops_per_second = Quantity(
        "`flops` at the mean latency", labels=_SETTING, better="higher", scale="log", drawn="not"
    )


class LayerTimes(Quantities):
    records = "where the time of a pass goes"

    self_seconds = Quantity(
        "in a module's own code, without the modules that it calls; a median over passes", kinds=("module",), unit="s",
        better="lower", drawn="in a figure of its own",
    )  # fmt: skip
    total_seconds = Quantity(
        "sum of self times: of a module and those that it calls, once where it calls itself; of all modules of a "
        "layer; of the pass", kinds=("module", "layer", "model"), unit="s", better="lower",
        drawn="in a figure of its own",
    )  # fmt: skip
    calls = Quantity("in one pass", kinds=("module",), drawn="not")


_PROCESS = {
    "process": "`own`: the caller's, or an accelerator's allocator; `fresh`: one that loads the model and runs it once"
}


class MemoryUse(Quantities):
    records = "size by part, and the peak of a pass"

    parameters = Quantity(
        "how many numbers; tied ones once, under the first of their names", kinds=("model", "part"), drawn="not"
    )
    model_bytes = Quantity(
        "of parameters and buffers", unit="bytes", better="lower", scale="log", drawn="in a figure of its own"
    )
    bytes = Quantity(
        "of parameters and buffers of embedding, attention, mlp, norm, head, other", kinds=("part",), unit="bytes",
        better="lower", drawn="in a figure of its own",
    )  # fmt: skip
    peak_bytes = Quantity(
        "the most memory during the pass", labels=_PROCESS, unit="bytes", better="lower", scale="log",
        drawn="in a figure of its own",
    )  # fmt: skip
    run_bytes = Quantity(
        "how much of the peak is above what was there before the pass", labels=_PROCESS, unit="bytes", better="lower",
        scale="log", drawn="in a figure of its own",
    )  # fmt: skip


class ExportedSpeed(Quantities):
    records = "real speed of weights held in 8 or 4 bits"

    _COPY = ("exported",)

    latency_p50 = Quantity("median of a pass", kinds=_COPY, unit="s", better="lower", drawn="not")
    latency_mean = Quantity("of a pass", kinds=_COPY, unit="s", better="lower", drawn="not")
    latency_n = Quantity("passes timed", kinds=_COPY, drawn="not")
    examples_per_second = Quantity("by the mean", kinds=_COPY, better="higher", drawn="not")
    tokens_per_second = Quantity(
        "by the mean, without padding", kinds=_COPY, better="higher", drawn="not", when="where inputs are token ids"
    )
    speed_up = Quantity("median of the model / median of the copy", kinds=_COPY, better="higher", drawn="not")
    weight_bytes = Quantity(
        "of parameters and buffers as they are held", kinds=_COPY, unit="bytes", better="lower", drawn="not"
    )
    kl = Quantity(
        "KL(model ‖ copy) of the outputs, mean per position", kinds=_COPY, unit="nats", better="lower", drawn="not"
    )
    mse = Quantity("of the copy's outputs, from the model's", kinds=_COPY, better="lower", drawn="not")
