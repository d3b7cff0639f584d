"""What a watched session says about itself: alerts, its page, and how it displays itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from learnscope.model.guard import preserve_rng
from learnscope.record import Finding
from learnscope.record.display import badge, card, facts_line, one_line, safe
from learnscope.session.engine import Engine
from learnscope.session.telling.alerts import Alerts
from learnscope.store.backend import FolderBackend

if TYPE_CHECKING:
    from typing import Self


class Shown:
    """The part of a session that is for its reader."""

    _engine: Engine
    _closed: bool
    _alerts: Alerts | None = None
    address: str | None = None
    """Where the live page is, with `view=True`."""

    if TYPE_CHECKING:

        @property
        def steps(self) -> int: ...

    def shown(self, alerts: Alerts | None, optimizers: Sequence[Any], *, view: bool) -> Self:
        """The session, with alerts and a live page if it has them."""
        if alerts is not None:
            self._alerts, alerts.since = alerts, self.steps
            alerts.raise_in(optimizers)
        if view:
            try:
                from learnscope.session.telling.viewing import start_view

                self.address = start_view(self._engine.backend)
                print(f"learnscope view: {self.address}", flush=True)
            except OSError as error:
                self._engine.warn("view", f"the live page could not be started ({error}); training goes on without it")
        return self

    @property
    def alerts(self) -> list[Finding]:
        """The alerts that were told so far; none without `alerts=` or `stop_on=`."""
        return [] if self._alerts is None else list(self._alerts.told)

    @property
    def should_stop(self) -> bool:
        """Whether an alert of `stop_on=` was told. Of several ranks, rank 0 alone knows: broadcast it."""
        return self._alerts is not None and self._alerts.should_stop

    def raise_if_asked(self) -> None:
        if self._alerts is not None:
            self._alerts.raise_if_asked()

    def _facts(self) -> list[str]:
        backend = self._engine.backend
        where = str(backend.path) if isinstance(backend, FolderBackend) else "in memory"
        probes = len(self._engine.bound)
        return [
            where,
            "closed" if self._closed else "watching",
            f"{self.steps:,} steps",
            f"{probes} probe{'s' * (probes != 1)}",
        ]

    def __repr__(self) -> str:
        where, *facts = self._facts()
        told = "" if self._alerts is None else f"alerts: {'; '.join(each.title for each in self.alerts) or 'none'}"
        return one_line(f"Watch {where}", *facts, told, self.address or "")

    def _repr_html_(self) -> str:
        with preserve_rng():
            where, *facts = self._facts()
            page = f'<a href="{safe(self.address)}">{safe(self.address)}</a>' if self.address else ""
            told = [f"{badge(each.severity)} {safe(each.title)}" for each in self.alerts]
            none = "no alerts so far" if self._alerts is not None and not told else ""
            return card(f"<b>{safe(where)}</b>", facts_line(facts), page, none, *told)
