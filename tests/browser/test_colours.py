"""The page's colours tell apart for readers who do not see all of them, as Chromium simulates it."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

Values = NDArray[np.float64]
APART = 10.0
"""CIE 1976 colour difference: 2.3 can just be seen side by side (Mahy et al. 1994), 10 at a glance."""
SIGHTS = ("none", "protanopia", "deuteranopia", "tritanopia")
SWATCHES = """colours => {
    const box = document.createElement('div');
    box.style.cssText = 'position:fixed;left:0;top:0;z-index:99;display:flex';
    for (const colour of colours) {
        const one = document.createElement('div');
        one.style.cssText = `width:8px;height:8px;background:${colour}`;
        box.append(one);
    }
    document.body.append(box);
}"""

NINE = """name => Array.from({ length: 9 }, (_, i) => {
    const all = learnscope.colours[name], at = 3 * Math.round((i / 8) * 255);
    return `rgb(${all[at]} ${all[at + 1]} ${all[at + 2]})`;
})"""


def lab(rgb: Values) -> Values:
    """CIE L*a*b* of sRGB from 0 to 1, white D65 (IEC 61966-2-1, CIE 15)."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175],
                       [0.0193339, 0.119192, 0.9503041]])  # fmt: skip
    xyz = linear @ to_xyz.T / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], -1)


def seen(one: Any, colours: list[str], sight: str) -> Values:
    """What these colours look like on the page, read off a picture of it."""
    one.do(SWATCHES, colours)
    session = one.page.context.new_cdp_session(one.page)
    session.send("Emulation.setEmulatedVisionDeficiency", {"type": sight})
    picture = one.page.screenshot(clip={"x": 0, "y": 0, "width": 8 * len(colours), "height": 8})
    return lab(imread(io.BytesIO(picture))[4, 4::8, :3].astype(np.float64))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_curves_tell_apart(sight: str, theme: str, page_files: Callable[[str], Path], opened: Any) -> None:
    one = opened(theme).go(page_files("training"))
    names = [*(f"var(--s{place})" for place in range(8)), "var(--panel)"]
    for (a, left), (b, right) in itertools.combinations(zip(names, seen(one, names, sight), strict=True), 2):
        assert np.linalg.norm(left - right) > APART, (a, b)


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_of_heatmaps_keep_their_order(sight: str, page_files: Callable[[str], Path], opened: Any) -> None:
    """More is lighter on the one scale; on the other both sides go away from the middle, and from each other."""
    one = opened().go(page_files("training"))
    assert (np.diff(seen(one, one.do(NINE, "sequential"), sight)[:, 0]) > 2).all()
    sides = seen(one, one.do(NINE, "diverging"), sight)
    away = np.linalg.norm(sides - sides[4], axis=1)
    assert (np.diff(away[:5]) < 0).all()
    assert (np.diff(away[4:]) > 0).all()
    for left, right in zip(sides[:3], sides[:5:-1], strict=True):
        assert np.linalg.norm(left - right) > APART
