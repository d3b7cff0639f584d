"""Standing around what belongs to a trainer, without harm to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from learnscope.session.telling.alerts import TrainingStopped
from learnscope.session.watch import Watch


class Around:
    """Methods of single objects with ours around them, until `remove`.

    >>> class Greeter:
    ...     def greet(self, name): return f"hello {name}"
    >>> greeter, around = Greeter(), Around()
    >>> method = around.put(greeter, "greet", lambda method, name: method(name.title()))
    >>> greeter.greet("ada"), around.remove(), greeter.greet("ada")
    ('hello Ada', None, 'hello ada')
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
        """Call `ours(method, *args, **kwargs)` in place of a method; returns the method as it was."""
        method: Callable[..., Any] = getattr(owner, name)
        before = vars(owner).get(name)

        @wraps(method)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return ours(method, *args, **kwargs)

        def undo() -> None:
            if vars(owner).get(name) is replacement:  # else somebody has put another around it since, which stays
                if before is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)

        setattr(owner, name, replacement)
        self._undo.append(undo)
        return method

    def remove(self) -> None:
        """The methods are their owners' own again; a second call does nothing."""
        undo, self._undo = self._undo, []
        for each in reversed(undo):
            each()


class Opened(Protocol):
    """What hands over to a session while it is open."""

    is_open: bool

    @property
    def session(self) -> Watch: ...


Owner = TypeVar("Owner", bound=Opened)
P = ParamSpec("P")


def harmless(hook: Callable[Concatenate[Owner, P], None]) -> Callable[Concatenate[Owner, P], None]:
    """A hook that does nothing while no session is open, and whose errors are warnings, unless the session is strict.

    What a session raises on purpose (`raise_on_stop`) is passed on.
    """

    @wraps(hook)
    def safe(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not owner.is_open:
            return
        stopped: list[TrainingStopped] = []

        @wraps(hook)
        def attempt() -> None:
            try:
                hook(owner, *args, **kwargs)
            except TrainingStopped as stop:
                stopped.append(stop)

        owner.session.safely(attempt)()
        if stopped:
            raise stopped[0]

    return safe
