"""How small the ranks of adapters could be, judged by the outputs of the model with its adapters cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.adapters.inventory import Adapter, find_adapters, grouped
from learnscope.model.adapters.truncation import Cuttable, cuttable, ranks_all, ranks_each, truncated
from learnscope.probes.adapters.opening import open_adapters
from learnscope.probes.outputs.columns import (
    compared_with,
    holdout_reference,
    output_columns,
    read_together,
    undefined_comparisons,
    with_cosine_reasons,
)
from learnscope.quantities.adapters import AdapterTruncation as Q
from learnscope.record import Measurement, Table

CUTS: dict[str, Callable[[Sequence[Tensor], float], list[int]]] = {"each": ranks_each, "all": ranks_all}
Key = tuple[str, float]
NONE: Key = ("each", 0.0)
NOTHING = "the adapters change nothing in the outputs on these examples"


class AdapterTruncation(Probe):
    """The model with the update of every adapter (PEFT) cut to the directions that hold a share of its energy.

    Each update ΔW is replaced by its best approximation of a lower rank, all adapters at once, and the model is
    compared with itself on the holdout examples. Two cuts: `each` keeps the share `energy` of every ‖ΔW‖_F², `all`
    keeps the largest singular values of all adapters together that hold it. Energy 0 is no update at all: it gives the
    scale. What is recommended is the cut with the fewest parameters whose mean KL (squared error, for models that give
    numbers) is at most `share` of that: these ranks have been tried.

    With a start (PiSSA, MiLoRA) ΔW is what training has added, and its rank can be up to 2 r. Adapters that cannot be
    cut keep their whole update, and their row has the reason.
    """

    at: At = "end"
    energies: Sequence[float] = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
    share: float = 0.01
    """How much of what the adapters do to the outputs may be lost."""
    examples: int = 32

    needs = frozenset({"holdout"})
    cost = "forwards on `examples` holdout examples: one, and two for each of `energies`; an SVD of every adapter"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.energies or any(not 0 < energy < 1 for energy in self.energies):
            raise ValueError(f"AdapterTruncation(energies={self.energies!r}): shares above 0 and below 1 are needed")
        if not 0 < self.share < 1:
            raise ValueError(f"AdapterTruncation(share={self.share!r}): a share above 0 and below 1 is needed")
        if self.examples < 1:
            raise ValueError(f"AdapterTruncation(examples={self.examples}): at least one example is needed")

    def open(self, moment: Moment) -> None:
        open_adapters(moment)

    def measure(self, moment: Moment) -> Measurement:
        adapters = find_adapters(moment.model, moment.optimizers).items
        cut, reasons = cuttable(moment.model, adapters)
        if not cut:
            return Measurement(_modules(adapters, cut, reasons, None))
        batches, reference = holdout_reference(moment, self.examples)
        spectra = [update.values for update in cut]
        ranks: dict[Key, list[int]] = {NONE: [0] * len(cut)}
        ranks |= {(how, e): CUTS[how](spectra, e) for how in CUTS for e in sorted(set(self.energies))}
        compared: dict[Key, dict[str, Tensor]] = {}
        for key, lower in ranks.items():
            with moment.exchanged(truncated(moment.model, cut, lower)):
                compared[key] = compared_with(moment, batches, reference)
        numbers = read_together(compared)
        shares = {key: _parameters(cut, lower) for key, lower in ranks.items()}
        judge = Q.mse if Q.kl.name in undefined_comparisons(reference) else Q.kl
        best = _recommended({key: values[judge.name] for key, values in numbers.items()}, shares, self.share)
        columns = [c for key, values in numbers.items() for c in output_columns(Q, values, reference, _labels(key))]
        columns += [Q.parameters_kept.column([share], _labels(key)) for key, share in shares.items()]
        if isinstance(best, str):
            reasons = dict.fromkeys(range(len(adapters)), best) | reasons
        columns += [
            Q.recommended_energy.cells([best if isinstance(best, str) else best[1]], **_choice(best)),
            Q.recommended_parameters.cells([best if isinstance(best, str) else shares[best]], **_choice(best)),
        ]
        modules = _modules(adapters, cut, reasons, None if isinstance(best, str) else ranks[best])
        notes = {
            "examples": sum(moment.task.size(batch) for batch in batches),
            "share": self.share,
            "judged_by": judge.name,
        }
        tables = [Table("model", ["model"], columns), *modules]
        return Measurement(tables, notes=notes, finish=with_cosine_reasons)


def _labels(key: Key) -> dict[str, str | float]:
    return {"cut": key[0], "energy": key[1]}


def _choice(best: Key | str) -> dict[str, str]:
    return {} if isinstance(best, str) else {"cut": best[0]}


def _parameters(cut: Sequence[Cuttable], ranks: Sequence[int]) -> float:
    """The share of r·(m + n) over all adapters that lower ranks need."""
    needed = sum(rank * sum(update.sizes) for update, rank in zip(cut, ranks, strict=True))
    return needed / sum((update.adapter.parts.rank or 0) * sum(update.sizes) for update in cut)


def _recommended(losses: Mapping[Key, float], shares: Mapping[Key, float], most: float) -> Key | str:
    """The cut with the fewest parameters that loses little enough, or why there is none."""
    scale = losses[NONE]
    if not scale > 0:
        return NOTHING
    enough = [key for key, value in losses.items() if key != NONE and value <= most * scale]
    if not enough:
        nearest = min(value for key, value in losses.items() if key != NONE)
        tried = f"every cut that was tried loses more than {most:g} of what the adapters do to the outputs"
        return f"{tried}, {nearest / scale:.2g} at best"
    # of equal ones the one that keeps more energy
    return min(enough, key=lambda key: (shares[key], -key[1]))


def _modules(
    adapters: Sequence[Adapter], cut: Sequence[Cuttable], reasons: Mapping[int, str], ranks: Sequence[int] | None
) -> list[Table]:
    """One table for each adapter and family, a row a module."""
    number = {id(update.adapter): place for place, update in enumerate(cut)}
    why = {id(adapter): reasons[place] for place, adapter in enumerate(adapters) if place in reasons}
    tables = []
    for (name, family), members in grouped(adapters).items():
        labels = {"adapter": name, "family": family}
        rows = [(adapter, number.get(id(adapter))) for adapter in members]
        best = [why[id(a)] if ranks is None or place is None else ranks[place] for a, place in rows]
        own = [why[id(a)] if a.parts.rank is None else a.parts.rank for a, _ in rows]
        directions = [why[id(a)] if place is None else cut[place].directions for a, place in rows]
        columns = [
            quantity.cells(cells, **labels)
            for quantity, cells in ((Q.recommended_rank, best), (Q.rank, own), (Q.directions, directions))
        ]
        tables.append(Table("module", [adapter.scope for adapter in members], columns))
    return tables
