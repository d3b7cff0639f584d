"""Learning rate schedules of torch: how often they are stepped.

A schedule knows its optimizer and not the reverse, so its step is noticed where all of torch's schedules pass: the
method that writes the rates into the optimizer's groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.optim import lr_scheduler

from learnscope.session.telling.listeners import Listeners

Listener = Callable[[Any], object]
_originals: dict[tuple[type, str], Callable[..., Any]] = {}
# SequentialLR and ChainedScheduler step others, which are noticed; ReduceLROnPlateau is given a number once an epoch
_PLACES = ((lr_scheduler.LRScheduler, "_update_lr"), (lr_scheduler.CosineAnnealingWarmRestarts, "step"))


def _replace() -> None:
    for place, name in _PLACES:
        if name in vars(place):
            _originals[place, name] = vars(place)[name]
            setattr(place, name, _announcing(vars(place)[name]))


def _restore() -> None:
    for (place, name), original in _originals.items():
        setattr(place, name, original)
    _originals.clear()


listeners: Listeners[Listener] = Listeners(_replace, _restore)
"""Called with every schedule that is stepped. torch's own methods are back in their places when nobody listens any
more."""


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def announced(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(schedule, *args, **kwargs)
        if not getattr(schedule, "_is_initial", False):  # its constructor steps it once
            for listener in listeners:
                listener(schedule)
        return result

    return announced
