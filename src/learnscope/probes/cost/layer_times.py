"""Where the time of a forward pass goes."""

from __future__ import annotations

import math
from typing import ClassVar

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.cost.layer_times import layer_times
from learnscope.record import Column, Measurement, Table


class LayerTimes(Probe):
    """Seconds of every module in a pass over the data's first batch, in eval mode, by hooks on all of them.

    | name | kind | meaning |
    |---|---|---|
    | `self_seconds` | module | in its own code, without the modules that it calls |
    | `total_seconds` | module | with them; a module that calls itself counts once |
    | `calls` | module | in one pass |
    | `total_seconds` | layer | of all modules that belong to the layer; the layers' times sum to the model's |
    | `total_seconds` | model | of the pass: the sum of all self times |

    Self times are medians over passes, all else sums of these. The time of a function that is no module is that of the
    module which calls it. Hooks take time: the note `overhead` is how much longer the pass took with them than without,
    as a share, and most of that lies in the self times of modules that call many others. A shared module stands under
    its first name. A module that was not called in the pass is named in the notes and has no row.
    """

    at: At = "once"
    repeats: int = 50
    """Passes after which it is done before its seconds are spent."""
    seconds: float = 2.0
    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    reads_only: ClassVar[bool] = True  # the passes have a guard of their own

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.repeats, bool) or not isinstance(self.repeats, int) or self.repeats < 1:
            raise ValueError(f"LayerTimes(repeats={self.repeats!r}): a whole number from 1")
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
            Column(name, [module[key] for module in modules.values()])
            for name, key in (("self_seconds", "self"), ("total_seconds", "total"), ("calls", "calls"))
        ]
        layers = found["layers"]
        return Measurement(
            [
                Table("module", list(modules), columns),
                Table("layer", list(layers), [Column("total_seconds", list(layers.values()))]),
                Table("model", ["model"], [Column("total_seconds", [found["total"]])]),
            ],
            notes={name: found[name] for name in ("passes", "overhead", "not_called")},
        )
