"""Where the time of a forward pass goes."""

from __future__ import annotations

from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.cost.layer_times import layer_times
from learnscope.probes.cost.timing import TimingProbe, first_batch
from learnscope.quantities.cost import LayerTimes as Q
from learnscope.record import Measurement, Table


class LayerTimes(TimingProbe):
    """Seconds of every module in a pass over the data's first batch, in eval mode, by hooks on all of them.

    The layers' times sum to the model's. A function that is no module counts for the module which calls it. Hooks take
    time: the note `overhead` is how much longer the pass took with them, as a share, most of it in the self times of
    modules that call many others. A shared module has its first name. A module that was not called in the pass is named
    in the notes and has no row.
    """

    repeats: int = 50
    seconds: float = 2.0
    one_example: bool = False
    """Whether only the first example of the batch is run."""

    reads_only = True  # the passes have a guard of their own
    cost = "up to `seconds` of forward passes over one batch"

    def measure(self, moment: Moment) -> Measurement:
        options: dict[str, Any] = {"repeats": self.repeats, "seconds": self.seconds}
        batch = moment.task.take(first_batch(moment), 1) if self.one_example else first_batch(moment)
        times = moment.remember(
            {"what": "layer times", **options, **({"one example": True} if self.one_example else {})},
            lambda: layer_times(moment.model, moment.task, batch, **options),
            on_this_machine=True,
        )
        modules = times["modules"]
        columns = [
            quantity.column([module[key] for module in modules.values()])
            for quantity, key in ((Q.self_seconds, "self"), (Q.total_seconds, "total"), (Q.calls, "calls"))
        ]
        layers = times["layers"]
        return Measurement(
            [
                Table("module", list(modules), columns),
                Table("layer", list(layers), [Q.total_seconds.column(list(layers.values()))]),
                Table("model", ["model"], [Q.total_seconds.column([times["total"]])]),
            ],
            notes={name: times[name] for name in ("passes", "overhead", "not_called")},
        )
