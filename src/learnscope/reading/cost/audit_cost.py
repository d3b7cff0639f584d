"""The parts of an audit that are about time and memory, each with its numbers by name."""

from __future__ import annotations

from functools import cached_property

from learnscope.quantities import cost
from learnscope.reading.audit_numbers import CountOf, Entry, Label, Number, NumberOf, Part


class Setting(Entry):
    """One shape of input that was timed: seconds, and throughput."""

    mean, p50 = NumberOf(cost.InferenceSpeed.latency_mean), NumberOf(cost.InferenceSpeed.latency_p50)
    p95, p99 = NumberOf(cost.InferenceSpeed.latency_p95), NumberOf(cost.InferenceSpeed.latency_p99)
    n = CountOf(cost.InferenceSpeed.latency_n)
    phase, batch, length, main = Label("phase", ""), Label("batch", 1), Label("length", 0), Label("main", False)
    tokens_per_second = NumberOf(cost.InferenceSpeed.tokens_per_second)
    examples_per_second = NumberOf(cost.InferenceSpeed.examples_per_second)

    @property
    def description(self) -> str:
        """
        >>> Setting(labels={"phase": "decode", "batch": 1, "length": 64}).description
        'decode, batch 1, length 64'
        """
        return f"{self.phase}, {self.at}"

    @property
    def at(self) -> str:
        return f"batch {self.batch}" + (f", length {self.length}" if self.length else "")

    @property
    def rate(self) -> tuple[Number, str]:
        """Tokens per second, or examples where inputs have no tokens."""
        if self.tokens_per_second.value is None and self.examples_per_second.value is not None:
            return self.examples_per_second, "examples/s"
        return self.tokens_per_second, "tokens/s"


class Speed(Part):
    quantities = cost.InferenceSpeed

    @cached_property
    def settings(self) -> list[Setting]:
        return [setting for setting in self.of("model", Setting) if "phase" in setting.labels]

    @property
    def main(self) -> Setting:
        return next((setting for setting in self.settings if setting.main), self.settings[0])

    def of_phase(self, phase: str) -> list[Setting]:
        return [setting for setting in self.settings if setting.phase == phase]

    @property
    def alone(self) -> Setting | None:
        """What one user waits for: decoding at batch 1 after the longest text; a pass over one example for models that
        do not decode. None if that was not tried."""
        phase = "decode" if self.of_phase("decode") else "forward"
        single = [setting for setting in self.of_phase(phase) if setting.batch == 1]
        timed = [setting for setting in single if setting.rate[0].value is not None]
        return max(timed or single, key=lambda setting: setting.length, default=None)


class Running(Entry):
    """What running takes beside the weights, for one batch."""

    cache, activations = NumberOf(cost.MemoryUse.cache_bytes), NumberOf(cost.MemoryUse.activation_bytes)
    phase, batch, length = Label("phase", ""), Label("batch", 1), Label("length", 0)

    @property
    def where(self) -> str:
        """
        >>> Running(labels={"batch": 1, "length": 128}).where, Running(labels={"batch": 8}).where
        ('batch 1, 128 tokens', 'batch 8')
        """
        return f"batch {self.batch}" + (f", {self.length} tokens" if self.length else "")


class Memory(Part):
    quantities = cost.MemoryUse
    parameters, model_bytes = NumberOf(cost.MemoryUse.parameters), NumberOf(cost.MemoryUse.model_bytes)
    peak_bytes, run_bytes = NumberOf(cost.MemoryUse.peak_bytes), NumberOf(cost.MemoryUse.run_bytes)
    read_parameters, read_bytes = NumberOf(cost.MemoryUse.read_parameters), NumberOf(cost.MemoryUse.read_bytes)

    @property
    def running(self) -> list[Running]:
        return [one for one in self.of("model", Running) if cost.MemoryUse.activation_bytes.name in one.cells]

    @property
    def alone(self) -> Running | None:
        """For one example."""
        return next((one for one in self.running if one.batch == 1), None)

    @property
    def process(self) -> str | None:
        return next((entry.labels["process"] for entry in self.entries if "process" in entry.labels), None)

    @property
    def parts(self) -> dict[str, Number]:
        """Bytes of the weights by purpose, largest first."""
        sizes = {entry.scope: entry["bytes"] for entry in self.of("part", Entry)}
        return dict(sorted(sizes.items(), key=lambda item: -(item[1].value or 0)))


class Layers(Part):
    quantities = cost.LayerTimes
    total = NumberOf(cost.LayerTimes.total_seconds)

    @property
    def modules(self) -> dict[str, Number]:
        """Seconds spent in each module, without its submodules."""
        return {entry.scope: entry["self_seconds"] for entry in self.of("module", Entry)}

    @property
    def layers(self) -> dict[str, Number]:
        return {entry.scope: entry["total_seconds"] for entry in self.of("layer", Entry)}

    @property
    def n(self) -> int | None:
        """Number of passes."""
        return self.notes.get("passes")


class Copy(Entry):
    """A copy of the model with packed weights, and its measured latency."""

    latency, speed_up = NumberOf(cost.ExportedSpeed.latency_p50), NumberOf(cost.ExportedSpeed.speed_up)
    held, kl = NumberOf(cost.ExportedSpeed.weight_bytes), NumberOf(cost.ExportedSpeed.kl)
    n = CountOf(cost.ExportedSpeed.latency_n)
    decode_latency = NumberOf(cost.ExportedSpeed.decode_latency_p50)
    decode_speed_up = NumberOf(cost.ExportedSpeed.decode_speed_up)


class Exported(Part):
    quantities = cost.ExportedSpeed

    @property
    def copies(self) -> dict[str, Copy]:
        """The original, and packed copies by format, such as int8."""
        return {copy.name: copy for copy in self.of("exported", Copy)}
