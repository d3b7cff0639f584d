"""The training examples of a run with an ExampleLedger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from learnscope.ledger.of_run import ledger_of
from learnscope.ledger.patterns import patterns
from learnscope.quantities.examples import ExampleLedger
from learnscope.reading.epochs import epoch_statistics
from learnscope.reading.gather import labels_of
from learnscope.report.examples.learning import curves, data_map, hardest, with_confidence
from learnscope.store.reader import RunReader


def learning_figure(reader: RunReader) -> Figure | None:
    epochs = [
        epoch_statistics(record)
        for label in labels_of(reader, ExampleLedger)[:1]
        for record in reader.records(label)
        if record.tables
    ]
    return curves(epochs) if epochs else None


def data_map_figure(reader: RunReader) -> Figure | None:
    return _of_ledger(reader, data_map)


def hardest_figure(reader: RunReader) -> Figure | None:
    return _of_ledger(reader, hardest)


def _of_ledger(reader: RunReader, draw: Callable[[pd.DataFrame, Mapping[str, Any]], Figure]) -> Figure | None:
    ledger = ledger_of(reader.backend)
    if ledger is None or (known := with_confidence(ledger.frame())).empty:
        return None
    return draw(known, patterns(ledger.arrays()))
