"""learnscope records what happens inside a PyTorch model while it trains, and examines what comes out.

>>> import learnscope as ls
>>> sorted(name for name in dir(ls) if name in ("watch", "replay", "audit", "open_run"))
['audit', 'open_run', 'replay', 'watch']

Names are imported when they are first used: reading a run does not import torch. Type checkers and editors read them
in `__init__.pyi`, which `make names` writes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from learnscope.generators import unmoved_generators
from learnscope.probes import probe_modules

with unmoved_generators():
    import rich.style  # noqa: F401  (its first import draws a random number: not in the middle of a training loop)

_HOMES = {
    "comparison": ("Comparison", "compare"),
    "findings": ("Cuts",),
    "importing": ("import_run", "import_runs"),
    "ledger": ("IdError", "Ledger", "LedgerError"),
    "ledger.show": ("ShowExamples",),
    "model.adapters.start": ("AdapterError", "init_milora", "remember_start"),
    "model.weights.checkpoint": ("CheckpointError",),
    "model.examples.indexed": ("IndexedDataset", "IndexedStream"),
    "model.updates.patch": ("export_patch",),
    "model.updates.patch_apply": ("apply_patch",),
    "model.updates.patch_info": ("PatchError", "PatchInfo"),
    "integrations": ("watch_trainer",),
    "core.moment": ("Moment",),
    "core.probe": ("Probe", "ProbeWarning", "probe"),
    "quantities": ("Quantities", "Quantity"),
    "record": ("Column", "Finding", "Measurement", "Record", "Row", "Table"),
    "run": ("Run", "open_run"),
    "session.telling.alerts": ("TrainingStopped",),
    "session.audit": ("audit",),
    "session.replay": ("replay",),
    "session.defaults": ("default_probes",),
    "session.watch": ("Watch", "watch"),
    "sinks.console": ("ConsoleSink",),
    "sinks.chosen": ("sinks_for",),
    "sinks.mlflow": ("MLflowSink",),
    "sinks.prometheus": ("PrometheusSink", "prometheus_text"),
    "sinks.queued": ("Queued",),
    "sinks.tensorboard": ("TensorBoardSink",),
    "sinks.trackio": ("TrackioSink",),
    "sinks.wandb": ("WandbSink",),
    "store.backend": ("RunError",),
    "store.query": ("query",),
    "task": ("DictTask", "HuggingFaceTask", "PairTask", "Task", "TupleTask"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [*_HOME_OF, *probe_modules(), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF and name not in probe_modules():
        raise AttributeError(f"module 'learnscope' has no attribute {name!r}")
    with unmoved_generators():
        value = getattr(import_module(f"learnscope.{_HOME_OF.get(name, 'probes')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
