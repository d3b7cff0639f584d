"""What a session keeps of its examples' looks when it closes."""

from __future__ import annotations

from learnscope.findings.examples.notable import show_notable
from learnscope.probes.examples.example_ledger import ExampleLedger
from learnscope.session.ending import is_hurried
from learnscope.session.engine import Engine


def keep_looks(engine: Engine, status: str) -> None:
    """Read the examples that the report will list, if an `ExampleLedger` was told where they are.

    The caller holds the random generators: a data set that augments draws.
    """
    ledgers = [bound.probe for bound in engine.bound if isinstance(bound.probe, ExampleLedger)]
    show = next((ledger.show for ledger in ledgers if ledger.show is not None), None)
    if show is None or is_hurried(status):  # a signal may have come in the middle of the data set's own code
        return
    task = engine.subject.task
    view = None if task is None else task.show
    engine.store_file("shown.json", lambda: show_notable(engine.backend, show, view))
