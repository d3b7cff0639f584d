"""Orders in which optimizers step, and the training steps that they make."""

from __future__ import annotations

from session.several import Options

Steps = list[dict[str, int | None]]
"""For each training step, the number of the step of each optimizer that belongs to it; None if it did not step."""


def together(names: str, *steps: tuple[int | None, ...]) -> Steps:
    return [dict(zip(names, step, strict=True)) for step in steps]


IN_TURN = together("DG", (1, 1), (2, 2), (3, 3), (4, 4))
CASES: dict[str, tuple[str, str, Options, Steps]] = {
    "in turn": ("DG", "DG" * 4, Options(), IN_TURN),
    "in turn, clock first": ("DG", "DG" * 4, Options(clock="D"), IN_TURN),
    "in turn, clock last": ("DG", "DG" * 4, Options(clock="G"), IN_TURN),
    "listed the other way round": ("DG", "DG" * 4, Options(listed="GD"), IN_TURN),
    "G first": ("DG", "GD" * 4, Options(), IN_TURN),
    "G first, clock": ("DG", "GD" * 4, Options(clock="G"), IN_TURN),
    "G first, clock last": ("DG", "GD" * 4, Options(clock="D"), IN_TURN),
    "clock in the middle": ("DGE", "EDG" * 3, Options(clock="D"), together("DGE", (1, 1, 1), (2, 2, 2), (3, 3, 3))),
    "three in turn": ("DGE", "GED" * 3, Options(), together("DGE", (1, 1, 1), (2, 2, 2), (3, 3, 3))),
    "three D a G, G counts": ("DG", "DDDG" * 3, Options(clock="G"), together("DG", (3, 1), (6, 2), (9, 3))),
    "three D a G, D counts": (
        "DG", "DDDG" * 2, Options(clock="D"),
        together("DG", (1, None), (2, None), (3, 1), (4, None), (5, None), (6, 2)),
    ),
    "two G a D, D counts": ("DG", "DGG" * 4, Options(clock="D"), together("DG", (1, 2), (2, 4), (3, 6), (4, 8))),
    "two G a D, G counts": (
        "DG", "DGG" * 2, Options(clock="G"), together("DG", (1, 1), (None, 2), (2, 3), (None, 4)),
    ),
    "G begins late": ("DG", "DDD" + "DG" * 2, Options(clock="D"), together(
        "DG", (1, None), (2, None), (3, None), (4, 1), (5, 2)),
    ),
    "closures": ("DG", "DG" * 4, Options(closure=True, clip=True), IN_TURN),
    "closures, clock": ("DG", "DG" * 4, Options(closure=True, clip=True, clock="D"), IN_TURN),
    "clipped apart": ("DG", "DG" * 4, Options(clip=True), IN_TURN),
    "clipped apart, clock first": ("DG", "DG" * 4, Options(clip=True, clock="D"), IN_TURN),
    "clipped apart, three D a G": (
        "DG", "DDDG" * 2, Options(clip=True, clock="D"),
        together("DG", (1, None), (2, None), (3, 1), (4, None), (5, None), (6, 2)),
    ),
    "accumulation": ("DG", "DG" * 4, Options(accumulate=3, clip=True), IN_TURN),
    "scaler": ("DG", "DG" * 4, Options(scaler=True, clip=True), IN_TURN),
    "scaler, fused": ("DG", "DG" * 4, Options(scaler=True, fused=True), IN_TURN),
    "scaler skips D": ("DG", "DGdGDG", Options(scaler=True), together("DG", (1, 1), (None, 2), (2, 3))),
    "scaler skips G": ("DG", "DGDgDG", Options(scaler=True), together("DG", (1, 1), (2, None), (3, 2))),
    "scaler skips both": ("DG", "DGdgDG", Options(scaler=True), together("DG", (1, 1), (2, 2))),
    "scaler skips D, which counts": (
        "DG", "DGDGdGDG", Options(scaler=True, clock="D"), together("DG", (1, 1), (2, 2), (3, 4)),
    ),
    "scaler skips D, which counts, at once": (
        "DG", "DGdGDGDG", Options(scaler=True, clock="D"), together("DG", (1, 2), (2, 3), (3, 4)),
    ),
    "scaler skips G, which counts": ("DG", "DGDgDG", Options(scaler=True, clock="G"), together("DG", (1, 1), (3, 2))),
    "scaler skips D, fused": (
        "DG", "DGdGDG", Options(scaler=True, fused=True), together("DG", (1, 1), (None, 2), (2, 3)),
    ),
    "scaler skips G, fused": (
        "DG", "DGDgDG", Options(scaler=True, fused=True), together("DG", (1, 1), (2, None), (3, 2)),
    ),
    "scaler skips both, fused": ("DG", "DGdgDG", Options(scaler=True, fused=True), together("DG", (1, 1), (2, 2))),
    "scaler skips the clock, fused": (
        "DG", "DGDgDG", Options(scaler=True, fused=True, clock="G"), together("DG", (1, 1), (3, 2)),
    ),
    "scaler skips the first clock, fused": (
        "DG", "DGdGDGDG", Options(scaler=True, fused=True, clock="D"), together("DG", (1, 1), (2, 3), (3, 4)),
    ),
}  # fmt: skip
