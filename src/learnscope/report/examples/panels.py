"""The training examples of a run, where they were followed."""

from __future__ import annotations

from matplotlib.figure import Figure

from learnscope.ledger.of_run import epoch_statistics, ledger_of
from learnscope.ledger.patterns import patterns
from learnscope.reading.gather import labels_of
from learnscope.report.examples.learning import curves, data_map, hardest, with_confidence
from learnscope.store.reader import RunReader

PROBE = "ExampleLedger"


def learning_figure(reader: RunReader) -> Figure | None:
    told = [
        epoch_statistics(record)
        for label in labels_of(reader, PROBE)[:1]
        for record in reader.records(label)
        if record.tables
    ]
    return curves(told) if told else None


def data_map_figure(reader: RunReader) -> Figure | None:
    ledger = ledger_of(reader.backend)
    known = None if ledger is None else with_confidence(ledger.frame())
    return None if ledger is None or known is None or known.empty else data_map(known, patterns(ledger.arrays()))


def hardest_figure(reader: RunReader) -> Figure | None:
    ledger = ledger_of(reader.backend)
    known = None if ledger is None else with_confidence(ledger.frame())
    return None if ledger is None or known is None or known.empty else hardest(known, patterns(ledger.arrays()))
