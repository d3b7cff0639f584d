"""Audits written by hand, with every kind of record that an audit's probes make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from findings.made_run import MadeRun, Number
from learnscope.intervals import difference, wilson
from learnscope.record import Column, Label, Table

PARTS_OF = {"attn": "attn", "mlp": "mlp"}
BITS = (16, 8, 4, 2)
PARTS = ("performance", "speed", "memory", "layers", "sensitivity", "widths", "optimum", "exported", "tasks", "prompts",
         "attacks", "noise", "perturbations", "transfer")  # fmt: skip


def columns(values: Mapping[str, Number | str], **labels: Label) -> list[Column]:
    """A table's columns over one scope; a text is the reason why there is no number."""
    return [
        Column(name, [None], labels, {0: value}) if isinstance(value, str) else Column(name, [value], labels)
        for name, value in values.items()
    ]


def between(name: str, value: float, half: float | str) -> dict[str, Number | str]:
    """A number and the ends of its interval; a text is the reason why there is none."""
    low, high = (half, half) if isinstance(half, str) else (value - half, value + half)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


class AuditRun(MadeRun):
    """An audit of a language model of so many layers; parts are written one by one, or all by `made`."""

    def __init__(self, layers: int = 12, **more: Any) -> None:
        super().__init__(**{"class": "GPT2LMHeadModel", "parameters": 124_439_808, **more})
        self.manifest["source"] = "audit"
        self.layers_ = layers
        self.units = [f"h.{i}.{part}" for i in range(layers) for part in ("attn", "mlp")]
        self.random = np.random.default_rng(0)
        mlp = 1.0 + 0.5 * np.arange(2 * layers) / (2 * layers)
        self.fragile = np.exp(self.random.normal(0, 0.8, 2 * layers)) * mlp
        """How much more than another each unit minds being quantised."""

    def once(self, probe: str, tables: Sequence[Table], **notes: Any) -> None:
        self.write(probe, 0, tables, phase="once", notes=notes)

    def performance(self, loss: float = 3.2, **more: Number | str) -> None:
        values: dict[str, Number | str] = {
            **between("loss", loss, 0.05), **between("perplexity", float(np.exp(loss)), 1.2),
            **between("accuracy", 0.41, 0.01), "examples": 256, "positions": 32_512, **more,
        }  # fmt: skip
        top = columns({"top_k_accuracy": 0.63}, k=5) + columns({"top_k_accuracy": 0.72}, k=10)
        self.once("Performance", [Table("model", ["model"], columns(values) + top)])

    def speed(self, n: int = 100, scale: float = 1.0, *, decode: bool = True, warm: bool = True) -> None:
        found = []
        settings = [("forward", batch, 128, 0.02 + 0.018 * batch) for batch in (1, 4, 16)]
        if decode:
            settings += [("prefill", n, length, 0.005 + 2.5e-4 * n * length) for n in (1, 4) for length in (32, 128)]
            settings += [("decode", n, length, 0.014 + 0.001 * n) for n in (1, 4) for length in (32, 128)]
        for phase, batch, length, seconds in settings:
            seconds /= scale
            tokens = batch * (1 if phase == "decode" else length)
            few = f"n = {n}: too few for this percentile"
            values: dict[str, Number | str] = {
                "latency_mean": seconds, "latency_p50": 0.98 * seconds,
                "latency_p95": 1.2 * seconds if n >= 59 else few, "latency_p99": 1.6 * seconds if n >= 299 else few,
                "latency_n": n, "latency_warmup": 12, "batches_per_second": 1 / seconds,
                "examples_per_second": batch / seconds, "tokens_per_second": tokens / seconds, "flops": 2.5e8 * tokens,
                "flops_per_second": 2.5e8 * tokens / seconds,
            }  # fmt: skip
            main = phase == "forward" and batch == 4
            found += columns(values, phase=phase, batch=batch, length=length, main=main)
        self.once("InferenceSpeed", [Table("model", ["model"], found)], threads=2, device="cpu", warm=warm)

    def memory(self, activations: Number | str = 20e6, scale: float = 1.0, *, process: bool = True) -> None:
        parts = {"embedding": 157.5e6, "attention": 113e6, "mlp": 226e6, "norm": 0.2e6, "head": 0.0, "other": 0.0}
        values = {
            "parameters": 124_439_808, "model_bytes": scale * sum(parts.values()), "read_parameters": 123_000_000,
            "read_bytes": scale * 492e6,
        }  # fmt: skip
        ran: dict[str, Number | str] = {"peak_bytes": 980e6, "run_bytes": 180e6} if process else {}
        sizes = [Column("parameters", [int(b / 4) for b in parts.values()]),
                 Column("bytes", [scale * b for b in parts.values()])]  # fmt: skip
        model = columns(values) + columns(ran, process="fresh", batch=4, length=128)
        for n in (1, 4):
            each = {"activation_bytes": activations if isinstance(activations, str) else n * activations}
            cache = activations if isinstance(activations, str) else n * 9.4e6
            model += columns({"cache_bytes": cache, **each}, phase="prefill", batch=n, length=128)
        self.once("MemoryUse", [Table("model", ["model"], model), Table("part", list(parts), sizes)])

    def times(self) -> None:
        layers = [f"h.{i}" for i in range(self.layers_)]
        spent = [0.004 + 0.0002 * (i % 3) for i in range(self.layers_)]
        modules = [*[f"{layer}.mlp.c_fc" for layer in layers], "lm_head"]
        own = [*[0.4 * s for s in spent], 0.012]
        tables = [
            Table("model", ["model"], [Column("total_seconds", [sum(spent) + 0.013])]),
            Table("layer", layers, [Column("total_seconds", spent)]),
            Table("module", modules, [Column("self_seconds", own), Column("total_seconds", own),
                                      Column("calls", [1] * len(modules))]),
        ]  # fmt: skip
        self.once("LayerTimes", tables, passes=20)

    def sensitivity(self, bits: Sequence[int] = BITS, broken: str = "", judged_by: str = "kl") -> None:
        found = [Column("weights", [2_000_000] * len(self.units)), Column("original_bytes", [8e6] * len(self.units))]
        for b in bits:
            kl = [float(f * 2.0 ** (-2 * b) * 0.5) if b < 16 else 0.0 for f in self.fragile]
            if broken in self.units and b == min(bits):
                kl[self.units.index(broken)] = float("nan")
            found += [Column(judged_by, kl, {"bits": b}), Column("bytes", [2.5e5 * b] * len(kl), {"bits": b})]
        units = {
            name: {
                "layer": name.rsplit(".", 1)[0],
                "index": i // 2,
                "part": PARTS_OF.get(name.rsplit(".", 1)[-1], "other"),
            }
            for i, name in enumerate(self.units)
        }
        self.once("BitSensitivity", [Table("unit", self.units, found)], units=units, examples=64, positions=8128,
                  scheme="symmetric, channel", judged_by=judged_by)  # fmt: skip

    def widths(self, extra: Mapping[str, tuple[float, float]] | None = None, *, only: Sequence[str] = (),
               additivity: float = 1.3, broken: Sequence[str] = (), no_interval: str = "") -> None:  # fmt: skip
        """Configurations by their bits a weight and mean KL."""
        made = {"original": (32.0, 0.0), "uniform_16": (16.0, 1e-7), "uniform_8": (8.2, 3e-4), "uniform_4": (4.2, 0.06),
                "uniform_2": (2.2, 4.1), "progressive_8_4": (5.2, 0.021), "attention_focused_8_4": (5.6, 0.034),
                "mlp_focused_8_4": (6.9, 0.018), "mixed_4_8": (5.0, 0.012), **(extra or {})}  # fmt: skip
        chosen = {name: point for name, point in made.items() if not only or name in only}
        best, frontier = np.inf, set()
        for name, (_, kl) in sorted(chosen.items(), key=lambda item: item[1]):
            if kl < best:
                best = kl
                frontier.add(name)
        table = self._configurations(chosen, frontier, additivity, broken)
        reasons = dict.fromkeys(range(1, len(chosen)), no_interval) if no_interval else {}
        cut = [
            replace(one, values=[one.values[0], *[None] * len(reasons)], status=reasons) if reasons else one
            for one in table.columns if one.name.endswith(("_low", "_high"))
        ]  # fmt: skip
        others = [one for one in table.columns if not one.name.endswith(("_low", "_high"))]
        self.once("BitWidths", [replace(table, columns=others + cut)],
                  family={name: name.split("_")[0] for name in chosen}, bits={}, examples=64, positions=8128,
                  scheme="symmetric, channel", **({"no_intervals": no_interval} if no_interval else {}))  # fmt: skip

    def _configurations(self, chosen: Mapping[str, tuple[float, float]], frontier: set[str], additivity: float,
                        broken: Sequence[str]) -> Table:  # fmt: skip
        nan = float("nan")
        rows: dict[str, list[Number]] = {}
        for name, (bits, kl) in chosen.items():
            kl = nan if name in broken else kl
            change, wide = 1.1 * kl, 0.1 * kl + 1e-4
            row: dict[str, Number] = {
                "kl": kl, "kl_low": max(kl - 0.1 * kl, 0), "kl_high": kl + 0.1 * kl, "kl_median": 0.5 * kl,
                "kl_p99": 8 * kl, "top1_agree": float(np.exp(-2 * np.sqrt(kl))), "cosine": 1 - 0.1 * kl, "mse": kl,
                "broke": 0.1 * kl, "mended": 0.02 * kl, "loss": 3.2 + change, "loss_change": change,
                "loss_change_low": change - wide, "loss_change_high": change + wide,
                "perplexity": float(np.exp(3.2 + change)), "accuracy": 0.41 * float(np.exp(-kl)),
                "block_bits": bits, "model_bits": 0.7 * bits + 0.3 * 32, "packed_bytes": 10.6e6 * bits + 157.5e6,
                "original_bytes": 497e6, "compression": 497e6 / (10.6e6 * bits + 157.5e6),
                "on_frontier": int(name in frontier), "additivity": None if name == "original" else additivity,
            }  # fmt: skip
            for key, value in row.items():
                rows.setdefault(key, []).append(value)
        return Table("configuration", list(chosen), [Column(name, values) for name, values in rows.items()])

    def optimum(self, *, wins: bool = True, kl: float = 0.011) -> None:
        points = {"optimal": (4.4, kl), "uniform_4": (4.2, 0.064), "progressive_8_4": (5.2, 0.022)}
        bits = {unit: 8 if f > np.quantile(self.fragile, 0.75) else 4 for unit, f in zip(
            self.units, self.fragile, strict=True)}  # fmt: skip
        flat = dict.fromkeys(self.units, 4)
        model = columns({"budget_bytes": 205e6, "mixed_wins": int(wins)})
        tables = [
            self._configurations(points, {"optimal"}, 1.1, ()),
            Table("unit", self.units, [Column("chosen_bits", list(bits.values()))]),
            Table("model", ["model"], model),
        ]
        self.once("BitOptimum", tables, verdict="mixed" if wins else "uniform", recommended=bits if wins else flat,
                  recommended_name="optimal" if wins else "uniform_4", examples=48, solved="optimal")  # fmt: skip

    def exported(self, int8: float = 0.9, int4: Number | str = 1.6, decoding: float | None = None) -> None:
        """Medians of 20 ms, and copies so many times as fast; of one that cannot be made, the reason."""
        tables = []
        for name, gain, held in (("original", 1.0, 96e6), ("int8", int8, 30e6), ("int4", int4, 20e6)):
            if isinstance(gain, str):
                values: dict[str, Number | str] = dict.fromkeys(("latency_p50", "latency_n", "speed_up"), gain)
            else:
                values = {"latency_p50": 0.02 / gain, "latency_n": 50, **between("speed_up", gain, 0.01 * gain),
                          "weight_bytes": held, "kl": 0.0 if name == "original" else 1e-3}  # fmt: skip
                if decoding is not None and name != "original":
                    values |= between("decode_speed_up", decoding, 0.02 * decoding)
            tables.append(Table("exported", [name], columns(values)))
        self.once("ExportedSpeed", tables, threads=2, device="cpu", real=True)

    def attacks(self, gap: float = 0.23, half: float | str = 0.04, flags: Mapping[str, Number | str] | None = None,
                zeros: float = 0.001, unit: str = "relative", target: str = "inputs") -> None:  # fmt: skip
        found = []

        def attack(name: str, epsilon: float, steps: int, accuracy: float) -> Table:
            values: dict[str, Number | str] = {
                **between("accuracy", accuracy, half if isinstance(half, str) else half / 2),
                "loss": 3.2 + 4 * (0.41 - accuracy), "kl": 0.41 - accuracy,
                "zero_gradient_share": zeros, "epsilon_absolute": 3.1 * epsilon, "epsilon_relative": epsilon,
                "epsilon_token": 1.4 * epsilon,
            }  # fmt: skip
            labels: dict[str, Label] = {"norm": "l2", "epsilon": epsilon, "unit": unit, "steps": steps}
            return Table("attack", [name], columns(values, **labels))

        found.append(attack("clean", 0.0, 0, 0.41))
        for epsilon in (0.01, 0.03, 0.1, 0.3):
            lost = gap * (epsilon / 0.3) ** 0.5
            found += [attack("random", epsilon, 0, 0.41 - 0.05 * lost), attack("fgsm", epsilon, 1, 0.41 - 0.7 * lost),
                      attack("pgd", epsilon, 10, 0.41 - lost)]  # fmt: skip
        marks = {"pgd_at_least_fgsm": 1, "monotone_in_epsilon": 1, "monotone_in_steps": "one number of steps was tried",
                 "random_below_attack": 1, **(flags or {})}  # fmt: skip
        found.append(Table("model", ["model"], columns({**between("robustness_gap", gap, half), **marks})))
        self.once(
            "Attacks",
            found,
            target=target,
            steps=10,
            restarts=2,
            per="token",
            examples=32,
            texts=[{"epsilon": 0.3, "unit": unit, "before": "the cat sat", "after": "the bat sat", "changed": 1}],
        )

    def noise(self, kl: float = 1.0) -> None:
        found = []
        levels = [("weight_noise", s, kl * 3 * s * s) for s in (0.01, 0.02, 0.05, 0.1, 0.2)]
        levels += [("quantisation_noise", b, kl * 8 * 4.0 ** (1 - b)) for b in (8, 6, 4, 2)]
        for name, level, mean in levels:
            values = {
                **between("kl_mean", mean, 0.1 * mean), **between("loss_mean", 3.2 + mean, 0.1 * mean + 0.002),
                **between("accuracy_mean", 0.41 * float(np.exp(-mean)), 0.004), "seeds": 5,
            }  # fmt: skip
            found.append(Table("noise", [name], columns(values, level=level)))
        self.once("NoiseRobustness", found, examples=64)

    def prompts(self, lost: float = 0.02, reason: str | None = None) -> None:
        found = [Table("prompt", ["clean"], columns({"loss": 3.2, "accuracy": 0.41, "kl": 0.0, "seeds": 1}, level=0.0))]
        for name, harm in (("typos", 1.0), ("casing", 0.5)):
            for level in (0.02, 0.1):
                change = -lost * harm * level / 0.02
                values: dict[str, Number | str] = {
                    **between("accuracy_change", change, 0.01), **between("loss_change", -4 * change, 0.05),
                    **between("kl", -change, 0.005), "changed_share": level, "seeds": 3, "examples": 32,
                }  # fmt: skip
                if reason is not None and name == "casing":
                    values = dict.fromkeys(values, reason)
                found.append(Table("prompt", [name], columns(values, level=level)))
        self.once("PromptPerturbation", found, examples=32, changed="the first half of each text")

    def tasks(self) -> None:
        chosen = {**between("acc", 0.6, 0.05), **between("acc_norm", 0.62, 0.05), **between("acc_bytes", 0.61, 0.05)}
        chosen |= {"exact_match": "the questions are multiple choice", "chance": 0.25, "questions": 200, "cut": 0}
        said = {**between("exact_match", 0.3, 0.06), "acc": "the answers are in words", "questions": 100, "cut": 2}
        found = [Table("task", ["arc"], columns(chosen)), Table("task", ["sums"], columns(said))]
        self.once("TaskAccuracy", found)

    def perturbations(self) -> None:
        clean = {"accuracy_mean": 0.41, "loss_mean": 3.2, "seeds": 1, "changed_share": 0.0}
        found = [Table("perturbation", ["clean"], columns(clean, level=0.0))]
        for name, harm in (("token_dropout", 0.5), ("token_substitution", 0.9)):
            for level in (0.05, 0.1, 0.2, 0.4):
                values = {
                    **between("accuracy_mean", 0.41 - 0.41 * harm * level, 0.01),
                    **between("loss_mean", 3.2 + 4 * harm * level, 0.05), "seeds": 5, "changed_share": 0.98 * level,
                }  # fmt: skip
                found.append(Table("perturbation", [name], columns(values, level=level)))
        self.once("InputPerturbation", found, examples=64)

    def transfer(self, four: float = 0.36, examples: int | None = 400, half: float | None = None) -> None:
        """Accuracies as if each example were one position, or with intervals of `half`; none without examples."""
        own = {0: 0.18, 8: 0.19, 4: four}

        def with_ends(accuracy: float) -> dict[str, Number | str]:
            if half is not None:
                return between("accuracy", accuracy, half)
            ends = () if examples is None else wilson(accuracy, examples)
            return dict(zip(("accuracy", "accuracy_low", "accuracy_high"), (accuracy, *ends), strict=False))

        found = []
        for made in own:
            for tried in own:
                accuracy = own[tried] if made == tried else own[tried] + 0.05
                values: dict[str, Number | str] = {**with_ends(accuracy), "loss": 3.2 + 2 * (0.41 - accuracy)}
                if made == tried != 0:
                    change = accuracy - own[0]
                    values |= {"accuracy_change": change} if half is None else between("accuracy_change", change, half)
                    if half is None and examples is not None:
                        ends = difference((accuracy, examples), (own[0], examples))
                        values |= dict(zip(("accuracy_change_low", "accuracy_change_high"), ends, strict=True))
                found.append(Table("transfer", ["pgd"], columns(values, attack_bits=made, test_bits=tried)))
        clean = [one for bits in own for one in columns(with_ends(0.41 - 0.002 * (bits == 4)), bits=bits)]
        found.append(Table("bits", ["clean"], clean))
        notes = {} if examples is None else {"examples": examples}
        self.once("BitRobustness", found, epsilon=0.1, norm="l2", **notes)


def made(layers: int = 12, *, without: Sequence[str] = ()) -> AuditRun:
    """An audit with all its parts but those that are left out."""
    run = AuditRun(layers)
    for part in PARTS:
        if part not in without:
            getattr(run, "times" if part == "layers" else part)()
    return run
