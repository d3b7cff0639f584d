"""The loss of a model, and of ways to store it, on texts that other models are measured on as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.outputs.text_sums import text_sums
from learnscope.options import check_whole
from learnscope.probes.bits.candidates import Quantiser
from learnscope.probes.bits.trials import ORIGINAL
from learnscope.quantities.bits import SharedTexts as Q
from learnscope.record import Measurement, Table

NO_BYTES = "how many bytes the positions stand for is not known: give texts="
NO_CLASSES = "the targets are no classes"


class SharedTexts(Probe):
    """The loss on each text, of the model as it is and of given ways to store it, text by text.

    From such records of several models a comparison ranks them on one frontier of bytes and loss: differences are
    paired by text. Methods of rounding that need data are calibrated on the `train_data`; the texts themselves
    calibrate and choose nothing.

    Notes: `examples`, `tokens` (whether the loss is the log of a perplexity), `classes`, `read_as` (by text, equal for
    models that read it as the same tokens), `bits` and `schemes` by configuration.
    """

    at: At = "once"
    configurations: Mapping[str, Mapping[str, Any]] | None = None
    """By name `{"bits": {unit: bits}, "scheme": {…}}`, as the notes `bits` and `schemes` of `BitFrontier` have them."""
    texts: Sequence[Mapping[str, Any]] | None = None
    """Of each example `id`, `bytes` and `tokens`, a digest of what the model reads; None: the examples by number."""
    examples: int = 64

    needs = frozenset({"holdout"})
    uses = frozenset({"train_data"})
    cost = "a pass over the texts for each configuration"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, examples=1)

    def measure(self, moment: Moment) -> Measurement:
        stored = {ORIGINAL: {"bits": {}, "scheme": {}}, **(self.configurations or {})}
        scores, sizes = {}, {}
        for name in moment.track(list(stored), "ways to store it, on texts of all models"):
            way = _way(stored[name]["scheme"])
            scores[name] = _scores(moment, stored[name]["bits"], way, self.examples)
            sizes[name] = way.ledger(moment, stored[name]["bits"]).packed_bytes
        own = scores[ORIGINAL]
        texts = self._texts(len(own["positions"]))
        columns = [Q.text_positions.column(own["positions"]), Q.text_bytes.cells([text["bytes"] for text in texts])]
        for name, each in scores.items():
            right = each["right"] or [NO_CLASSES] * len(texts)
            columns += [Q.text_loss.column(each["loss"], {"configuration": name})]
            columns += [Q.text_right.cells(right, configuration=name)]
        losses = [sum(each["loss"]) / max(sum(each["positions"]), 1) for each in scores.values()]
        of_ways = [Q.loss.column(losses), Q.packed_bytes.column(list(sizes.values()))]
        notes = {
            "examples": len(texts), "tokens": own["tokens"], "classes": own["classes"],
            "read_as": {text["id"]: text["tokens"] for text in texts},
            "bits": {name: dict(each["bits"]) for name, each in stored.items()},
            "schemes": {name: dict(each["scheme"]) for name, each in stored.items()},
        }  # fmt: skip
        tables = [Table("text", [text["id"] for text in texts], columns), Table("configuration", [*scores], of_ways)]
        return Measurement(tables, notes=notes)

    def _texts(self, examples: int) -> list[Mapping[str, Any]]:
        if self.texts is None:
            return [{"id": f"example {place}", "bytes": NO_BYTES, "tokens": None} for place in range(examples)]
        if len(self.texts) != examples:
            raise ValueError(f"SharedTexts: {len(self.texts)} texts= are described, and the data have {examples}")
        return list(self.texts)


class _Calibrated(Quantiser):
    """A way of rounding that is calibrated on the training data, never on the texts that it is judged on."""

    def _calibration(self, moment: Moment) -> Calibration:
        batches, units = moment.train_data, find_units(moment.model, embeddings=True)
        return moment.once(
            "calibration on train_data", lambda: Calibration.collect(moment.model, batches, units, task=moment.task)
        )


def _way(scheme: Mapping[str, Any]) -> Quantiser:
    return _Calibrated(**scheme, embeddings=True)


def _scores(moment: Moment, bits: Mapping[str, int], way: Quantiser, examples: int) -> dict[str, Any]:
    key = {"what": "shared texts 1", "bits": dict(bits), "scheme": way.described(), "examples": examples}
    return moment.remember(key, partial(_run, moment, bits, way, examples))


def _run(moment: Moment, bits: Mapping[str, int], way: Quantiser, examples: int) -> dict[str, Any]:
    model, task, batches = moment.model, moment.task, moment.holdout_batches(examples)
    if not bits:
        return text_sums(model, task, batches)
    units, activations, copies = way.units(moment), way.activation_bits, way.copies(moment)
    with moment.sealing(), quantised(
        model, bits, way.scheme(), units=units, activation_bits=activations, copies=copies
    ):  # fmt: skip
        scores = text_sums(model, task, batches)
    way.release(moment)
    return scores
