"""Where the time of a forward pass goes."""

from __future__ import annotations

import math
from typing import ClassVar

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.cost.layer_times import layer_times
from learnscope.options import check_whole
from learnscope.quantities import Quantities
from learnscope.quantities.cost import LayerTimes as Q
from learnscope.record import Measurement, Table


class LayerTimes(Probe):
    """Seconds of every module in a pass over the data's first batch, in eval mode, by hooks on all of them.

    The layers' times sum to the model's. The time of a function that is no module is that of the module which calls it.
    Hooks take time: the note `overhead` is how much longer the pass took with them than without, as a share, and most
    of that lies in the self times of modules that call many others. A shared module stands under its first name. A
    module that was not called in the pass is named in the notes and has no row.
    """

    at: At = "once"
    repeats: int = 50
    """Passes after which it is done before its seconds are spent."""
    seconds: float = 2.0
    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    reads_only: ClassVar[bool] = True  # the passes have a guard of their own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "up to `seconds` of forward passes over one batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, repeats=1)
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds < math.inf):
            raise ValueError(f"LayerTimes(seconds={self.seconds!r}): a number above 0")

    def measure(self, moment: Moment) -> Measurement:
        options = {"repeats": self.repeats, "seconds": self.seconds}
        first = next(iter(moment.subject.holdout or ()))
        found = moment.remember(
            {"what": "layer times", **options},
            lambda: layer_times(moment.model, moment.task, first, repeats=self.repeats, seconds=self.seconds),
            on_this_machine=True,
        )
        modules = found["modules"]
        columns = [
            quantity.column([module[key] for module in modules.values()])
            for quantity, key in ((Q.self_seconds, "self"), (Q.total_seconds, "total"), (Q.calls, "calls"))
        ]
        layers = found["layers"]
        return Measurement(
            [
                Table("module", list(modules), columns),
                Table("layer", list(layers), [Q.total_seconds.column(list(layers.values()))]),
                Table("model", ["model"], [Q.total_seconds.column([found["total"]])]),
            ],
            notes={name: found[name] for name in ("passes", "overhead", "not_called")},
        )
