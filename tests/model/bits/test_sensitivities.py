"""The file of sensitivities, and mixes solved from it without a model."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from learnscope.model.bits.sensitivities import Sensitivities, SensitivityError, load, save
from learnscope.tensor.bits.allocation import NoAllocation

FOUND = Sensitivities(
    damage={
        "bloc·0.attn": {8: 1e-7, 4: 3e-4, 2: 0.25},
        "bloc·0.mlp": {8: 2e-8, 4: 1e-5, 2: math.inf},
        "x": {8: math.nan},
    },
    size={"bloc·0.attn": {8: 80, 4: 44, 2: 26}, "bloc·0.mlp": {8: 160, 4: 84, 2: 50}, "x": {8: 11}},
    stored={"bloc·0.attn": 320, "bloc·0.mlp": 640, "x": 44},
    weights={"bloc·0.attn": 80, "bloc·0.mlp": 160, "x": 11},
    other_bytes=1000,
    scheme={"symmetric": None, "granularity": "channel"},
    model="abc",
    examples=32,
)


def test_what_is_saved_comes_back_and_the_bytes_are_always_the_same(tmp_path: Path) -> None:
    save(FOUND, tmp_path / "a.json")
    # the same numbers, put together in another order
    other = replace(
        FOUND,
        damage={unit: dict(reversed(widths.items())) for unit, widths in FOUND.damage.items()},
        scheme=dict(reversed(FOUND.scheme.items())),
    )
    save(other, tmp_path / "deep" / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "deep" / "b.json").read_bytes()
    back = load(tmp_path / "a.json", model="abc")
    assert repr(back.damage["x"]) == "{8: nan}"
    assert back.damage["bloc·0.mlp"] == {8: 2e-8, 4: 1e-5, 2: math.inf}
    same = {
        name: getattr(back, name)
        for name in ("size", "stored", "weights", "other_bytes", "scheme", "model", "examples")
    }
    assert same == {name: getattr(FOUND, name) for name in same}


def test_mixes_are_the_best_of_all_and_units_may_stay_as_stored() -> None:
    options = {
        unit: [(None, 0.0, FOUND.stored[unit])]
        + [(b, d, FOUND.size[unit][b]) for b, d in widths.items() if math.isfinite(d)]
        for unit, widths in FOUND.damage.items()
    }
    every = [
        (math.fsum(d for _, d, _ in mix), 1000 + sum(s for _, _, s in mix), mix)
        for mix in itertools.product(*options.values())
    ]
    for limit in (1154, 1200, 1300, 1999, 2004):
        found = FOUND.solve(max_bytes=limit)
        assert found.damage == pytest.approx(min(d for d, s, _ in every if s <= limit), rel=1e-11)
        assert found.bytes == FOUND.bytes_of(found.choice) <= limit
    for bound in (0.0, 2e-8, 3e-4, 1.0):
        found = FOUND.solve(max_kl=bound)
        assert found.bytes == min(s for d, s, _ in every if d <= bound)
        assert found.damage <= bound
    assert FOUND.solve(max_kl=0.0).choice == {}
    # the last is never measured and the second at 2 bits is lost: 26 + 84 + 44
    with pytest.raises(NoAllocation, match="the smallest mix takes 1154 bytes"):
        FOUND.solve(max_bytes=1153)
    with pytest.raises(TypeError, match="one of max_bytes"):
        FOUND.solve()


def test_files_that_cannot_be_used_say_why_and_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    save(FOUND, path)
    whole = path.read_text()
    with pytest.raises(SensitivityError, match="of another model"):
        load(path, model="abd")
    with pytest.raises(SensitivityError, match="there is no file"):
        load(tmp_path / "none.json")

    def changed(**entries: object) -> str:
        return json.dumps({**json.loads(whole), **entries})

    units = json.loads(whole)["units"]
    units["x"]["bytes"] = {"4": 11}
    wrong = [
        (whole[: len(whole) // 2], "is damaged"),
        ("[]", "not a file of bit sensitivities"),
        (changed(schema=2), "has schema 2, this version reads 1"),
        (changed(kind="else"), "not a file of bit sensitivities"),
        (changed(units={}), "is damaged"),
        (changed(units=units), "damages and bytes for different bits"),
        (whole.replace('"nan"', '"three"'), "is damaged"),
        (whole.replace('"stored_bytes": 44', '"stored": 44'), "is damaged"),
    ]
    for text, words in wrong:
        path.write_text(text)
        with pytest.raises(SensitivityError, match=words):
            load(path)
        assert path.read_text() == text
