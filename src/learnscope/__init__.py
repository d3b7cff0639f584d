"""learnscope records what happens inside a PyTorch model while it trains, and examines what comes out.

>>> import learnscope as ls
>>> sorted(name for name in dir(ls) if name in ("watch", "replay", "audit", "open_run"))
['audit', 'open_run', 'replay', 'watch']

Names are imported when they are first used: reading a run does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learnscope.comparison import Comparison as Comparison
    from learnscope.comparison import compare as compare
    from learnscope.findings import Cuts as Cuts
    from learnscope.ledger import IdError as IdError
    from learnscope.ledger import Ledger as Ledger
    from learnscope.ledger import LedgerError as LedgerError
    from learnscope.model.adapter_start import AdapterError as AdapterError
    from learnscope.model.adapter_start import init_milora as init_milora
    from learnscope.model.adapter_start import remember_start as remember_start
    from learnscope.model.checkpoint import CheckpointError as CheckpointError
    from learnscope.model.indexed import IndexedDataset as IndexedDataset
    from learnscope.model.indexed import IndexedStream as IndexedStream
    from learnscope.model.patch import export_patch as export_patch
    from learnscope.model.patch_apply import apply_patch as apply_patch
    from learnscope.model.patch_file import PatchError as PatchError
    from learnscope.model.patch_info import PatchInfo as PatchInfo
    from learnscope.moment import Moment as Moment
    from learnscope.probes import Activations as Activations
    from learnscope.probes import AdapterGradients as AdapterGradients
    from learnscope.probes import AdapterSpectrum as AdapterSpectrum
    from learnscope.probes import AdapterTruncation as AdapterTruncation
    from learnscope.probes import Attacks as Attacks
    from learnscope.probes import BatchStats as BatchStats
    from learnscope.probes import BitOptimum as BitOptimum
    from learnscope.probes import BitRobustness as BitRobustness
    from learnscope.probes import BitSensitivity as BitSensitivity
    from learnscope.probes import BitWidths as BitWidths
    from learnscope.probes import ExampleLedger as ExampleLedger
    from learnscope.probes import ExampleTransitions as ExampleTransitions
    from learnscope.probes import ExportedSpeed as ExportedSpeed
    from learnscope.probes import FeatureEvolution as FeatureEvolution
    from learnscope.probes import GradientFlow as GradientFlow
    from learnscope.probes import GroupAccuracy as GroupAccuracy
    from learnscope.probes import Holdout as Holdout
    from learnscope.probes import InferenceSpeed as InferenceSpeed
    from learnscope.probes import InputPerturbation as InputPerturbation
    from learnscope.probes import LayerTimes as LayerTimes
    from learnscope.probes import LearningRate as LearningRate
    from learnscope.probes import Loss as Loss
    from learnscope.probes import LossLandscape as LossLandscape
    from learnscope.probes import LowRankQuality as LowRankQuality
    from learnscope.probes import Memorization as Memorization
    from learnscope.probes import MemoryUse as MemoryUse
    from learnscope.probes import Momentum as Momentum
    from learnscope.probes import NoiseRobustness as NoiseRobustness
    from learnscope.probes import ParameterChange as ParameterChange
    from learnscope.probes import Performance as Performance
    from learnscope.probes import SparseQuality as SparseQuality
    from learnscope.probes import WeightSpectrum as WeightSpectrum
    from learnscope.probing import Probe as Probe
    from learnscope.probing import ProbeWarning as ProbeWarning
    from learnscope.probing import probe as probe
    from learnscope.record import Column as Column
    from learnscope.record import Finding as Finding
    from learnscope.record import Measurement as Measurement
    from learnscope.record import Record as Record
    from learnscope.record import Row as Row
    from learnscope.record import Table as Table
    from learnscope.run import Run as Run
    from learnscope.run import open_run as open_run
    from learnscope.session.audit import audit as audit
    from learnscope.session.replay import replay as replay
    from learnscope.session.watch import Watch as Watch
    from learnscope.session.watch import default_probes as default_probes
    from learnscope.session.watch import watch as watch
    from learnscope.sinks.console import ConsoleSink as ConsoleSink
    from learnscope.sinks.tensorboard import TensorBoardSink as TensorBoardSink
    from learnscope.store.backend import RunError as RunError
    from learnscope.store.query import query as query
    from learnscope.task import DictTask as DictTask
    from learnscope.task import HuggingFaceTask as HuggingFaceTask
    from learnscope.task import PairTask as PairTask
    from learnscope.task import Task as Task
    from learnscope.task import TupleTask as TupleTask

_HOMES = {
    "comparison": ("Comparison", "compare"),
    "findings": ("Cuts",),
    "ledger": ("IdError", "Ledger", "LedgerError"),
    "model.adapter_start": ("AdapterError", "init_milora", "remember_start"),
    "model.checkpoint": ("CheckpointError",),
    "model.indexed": ("IndexedDataset", "IndexedStream"),
    "model.patch": ("export_patch",),
    "model.patch_apply": ("apply_patch",),
    "model.patch_file": ("PatchError",),
    "model.patch_info": ("PatchInfo",),
    "moment": ("Moment",),
    "probes": (
        "Activations",
        "AdapterGradients",
        "AdapterSpectrum",
        "AdapterTruncation",
        "Attacks",
        "BatchStats",
        "BitOptimum",
        "BitRobustness",
        "BitSensitivity",
        "BitWidths",
        "ExampleLedger",
        "ExampleTransitions",
        "ExportedSpeed",
        "FeatureEvolution",
        "GradientFlow",
        "GroupAccuracy",
        "Holdout",
        "InferenceSpeed",
        "InputPerturbation",
        "LayerTimes",
        "LearningRate",
        "Loss",
        "LossLandscape",
        "LowRankQuality",
        "Memorization",
        "MemoryUse",
        "Momentum",
        "NoiseRobustness",
        "ParameterChange",
        "Performance",
        "SparseQuality",
        "WeightSpectrum",
    ),
    "probing": ("Probe", "ProbeWarning", "probe"),
    "record": ("Column", "Finding", "Measurement", "Record", "Row", "Table"),
    "run": ("Run", "open_run"),
    "session.audit": ("audit",),
    "session.replay": ("replay",),
    "session.watch": ("Watch", "default_probes", "watch"),
    "sinks.console": ("ConsoleSink",),
    "sinks.tensorboard": ("TensorBoardSink",),
    "store.backend": ("RunError",),
    "store.query": ("query",),
    "task": ("DictTask", "HuggingFaceTask", "PairTask", "Task", "TupleTask"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [*_HOME_OF, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'learnscope' has no attribute {name!r}")
    value = getattr(import_module(f"learnscope.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
