"""What a page carries: the same numbers as the run, no spike lost, and what findings and figures share."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser.made_pages import SPIKE, STEPS, adapters, training, with_examples
from findings.made_run import MadeRun
from learnscope.reading.course.best import best_step
from learnscope.record import Column, Table
from learnscope.report.audit.panels import AUDIT_PANELS
from learnscope.report.page.catalogue import BROKEN, Matrix, catalogue
from learnscope.report.page.curves import Cells, curve, spark
from learnscope.report.page.html import assets, page
from learnscope.report.page.packing import Columns, as_text, unpack
from learnscope.report.page.training import run_payload
from learnscope.run import findings_in
from learnscope.store.reader import RunReader
from report.audit.audit_runs import made
from report.page.reading import numbers


def payload(reader: RunReader) -> dict[str, Any]:
    columns = Columns()
    body = run_payload(columns, reader, findings_in(reader), name="x")
    again, floats, integers = unpack(columns.pack(body))
    return again | {"columns": {"f": floats, "i": integers}}


def test_columns_come_back_as_they_were() -> None:
    columns, random = Columns(), np.random.default_rng(0)
    values = random.normal(size=1000) * 10.0 ** random.integers(-30, 30, 1000)
    values[:3] = math.nan, math.inf, 1e300
    references = [
        columns.floats(values),
        columns.steps([1, 5, 6, 2**30]),
        columns.steps(range(0, 70, 7)),
        columns.steps([2**40, 1]),
    ]
    rounded = columns.floats(values, rounded=True)
    body, floats, integers = unpack(columns.pack({"here": references}))
    read = {"columns": {"f": floats, "i": integers}}
    back = numbers(read, body["here"][0])
    assert np.isnan(back[0])
    assert np.isinf(back[1])
    assert np.isfinite(back[2])  # beyond float32, and still finite
    np.testing.assert_array_equal(back[3:], values[3:].astype(np.float32))
    coarse = numbers(read, rounded)
    np.testing.assert_allclose(coarse[3:], values[3:], rtol=2**-15)
    assert np.isnan(coarse[0])
    assert np.isinf(coarse[1])
    assert [list(numbers(read, reference)) for reference in body["here"][1:]] == [
        [1, 5, 6, 2**30],
        list(range(0, 70, 7)),
        [2**40, 1],
    ]


@pytest.mark.parametrize("n", [7, 1000, 5003])
def test_no_bucket_loses_its_extremes(n: int) -> None:
    random = np.random.default_rng(n)
    values, steps = random.normal(size=n), np.arange(n) * 3 + 1
    values[random.integers(0, n, n // 10)] = math.nan
    values[random.integers(0, n, 2)] = BROKEN
    columns = Columns()
    body = curve(columns, steps, values, most=100)
    packed, floats, integers = unpack(columns.pack({"c": body}))
    read = {"columns": {"f": floats, "i": integers}}
    low, high = (numbers(read, packed["c"].get(name) or packed["c"]["v"]) for name in ("low", "high"))
    finite = values[np.isfinite(values)]
    assert np.nanmax(high) == np.float32(finite.max())
    assert np.nanmin(low) == np.float32(finite.min())
    assert len(high) <= 100
    bad = numbers(read, packed["c"]["bad"])
    assert {step for a, b in bad.reshape(-1, 2) for step in range(a, b + 1) if step in steps} == set(
        steps[np.isinf(values)]
    )
    cells = Cells.of(Matrix(steps, ["a"], values[:, None]), 64)
    while len(cells.starts) > 4:
        cells = cells.halved()
    assert np.isinf(cells.high).any()
    assert np.nanmin(cells.low) == finite.min()
    small = spark(steps, values, most=10)
    assert small is not None
    assert max(small["high"]) == pytest.approx(finite.max(), rel=1e-3)


def test_the_catalogue_has_the_numbers_of_the_table() -> None:
    """Every number that the tidy table has, and nothing else, also where records are read one by one."""
    run = training()
    run.resume(200)
    run.write("Loss", 201, [Table("model", ["model"], [Column("loss", [0.5])])])
    run.backend.append('{"probe": "Loss", "step": 202, "epoch": null, "phase": "after_step", "source": "watch", '
                       '"attempt": 1, "time": 1.0, "cost": 0.1, "tables": [{"kind": "model", "scopes": ["model"], '
                       '"columns": [{"name": "loss", "values": [0.25]}]}]}')  # fmt: skip
    reader = run.reader
    found: dict[tuple[Any, ...], float] = {}
    for each in catalogue(reader):
        matrix = each.matrix()
        for row, step in enumerate(matrix.steps):
            for place, scope in enumerate(matrix.scopes):
                found[each.probe, each.kind, each.name, each.labels, scope, int(step)] = float(
                    matrix.values[row, place]
                )
    frame = reader.frame()
    assert len(frame) > 1000
    for probe, kind, name, scope, step, value, status, stage in frame[
        ["probe", "kind", "name", "scope", "step", "value", "status", "stage"]
    ].itertuples(index=False):
        labels = (("stage", stage),) if isinstance(stage, str) else ()
        mine = found.pop((probe, kind, name, labels, scope, step))
        if status == "nan":
            assert math.isinf(mine)
        else:
            assert mine == value or (math.isnan(mine) and math.isnan(value))
    assert all(math.isnan(value) for value in found.values())


def test_a_page_carries_what_was_recorded() -> None:
    body = payload(with_examples(training()).reader)
    losses = body["main"][0]["curves"]
    assert [each["name"] for each in losses] == ["training", "holdout"]
    values = numbers(body, losses[0]["v"])
    assert int(values[: STEPS - 10].argmax()) == SPIKE - 1
    assert numbers(body, losses[0]["bad"]).tolist() == [391, 400]
    norms = next(each for each in body["grids"] if each["name"] == "norm")
    cells = numbers(body, norms["high"]).reshape(len(norms["scopes"]), -1)
    assert np.isnan(cells).sum() == sum((k + i) % 11 == 0 for k in range(1, 101) for i in range(6))
    assert (cells[2] == 0).sum() > 5
    assert any(each["name"] == "nan" and each["value"] == "0" for each in body["flat"])
    assert body["step_examples"][str(SPIKE)]["more"] == 6
    assert body["examples"]["n"] == 300
    confidences = [row["confidence"] for row in body["examples"]["hardest"]]
    assert confidences == sorted(confidences)


def test_findings_and_page_share_their_numbers() -> None:
    """The best step, when an event began, the panel that shows it, and the recommended ranks."""
    reader = training().reader
    body = payload(reader)
    best = best_step(reader)
    assert best is not None
    assert body["verdict"]["best"]["step"] == best.step
    panels = {each["id"] for part in ("panels", "grids", "flat", "once") for each in body[part]}
    found = findings_in(reader)
    assert found
    for finding, entry in zip(found, body["findings"], strict=True):
        assert entry["fingerprint"] == finding.fingerprint
        assert entry["panel"] in panels
        if finding.evidence.first_step is not None:
            assert entry["steps"][0] == finding.evidence.first_step
        if finding.kind in ("overfitting", "worsening"):
            assert f"{best.step:,}" in finding.title
    ranks = payload(adapters().reader)["adapter"]["adapters"][0]["rank_pattern"]
    recorded = adapters().reader.frame("AdapterTruncation", "recommended_rank", "module")
    assert ranks == {scope: int(value) for scope, value in zip(recorded["scope"], recorded["value"], strict=True)}


def test_the_line_of_python_gets_the_numbers(tmp_path: Path) -> None:
    run = training().reader
    body = payload(run)
    for entry in [*body["findings"], *body["grids"], *body["panels"]]:
        table = eval(entry["pandas"], {"run": run})
        assert len(table), entry["pandas"]


def test_an_audit_has_its_cards_and_what_a_budget_needs() -> None:
    body = payload(made().reader)["audit"]
    assert [card["title"] for card in body["cards"]] == ["Quality", "Size", "Speed"]
    assert body["cards"][0]["lines"][0] == {"name": "accuracy", "value": "41 %", "ends": "40 % to 42 %"}
    assert "256 examples" in body["cards"][0]["n"]
    assert [each["name"] for each in body["configurations"] if each["recommended"]] == ["optimal"]
    assert len(body["units"]) == 24
    assert all(option["bytes"] == 2.5e5 * option["bits"] for unit in body["units"] for option in unit["options"])
    assert body["robustness"]["threat"].startswith("An attack on inputs")
    assert AUDIT_PANELS
    language = made(without=["attacks"])
    language.attacks(target="embeddings")
    said = payload(language.reader)["audit"]["robustness"]
    assert said["target"] == "embeddings"
    assert said["threat"].startswith("An attack on embeddings")
    assert "no verdict" in said["threat"]


def test_changed_prompts_stand_on_the_page_with_intervals_and_their_threat_model() -> None:
    run = made(without=["prompts"])
    run.prompts(lost=0.02, reason="no tokenizer is known")
    prompts = payload(run.reader)["audit"]["robustness"]["prompts"]
    assert prompts["threat"].startswith("Changed prompts are what anybody sends")
    assert (prompts["on"], prompts["seeds"], prompts["reason"]) == ("on 32 examples", 3, "no tokenizer is known")
    assert [(row["name"], row["level"]) for row in prompts["rows"]] == [
        ("typing errors", "2 %"),
        ("typing errors", "10 %"),
    ]
    first = prompts["rows"][0]
    assert [first["accuracy"][end] for end in ("value", "low", "high")] == pytest.approx([-0.02, -0.03, -0.01])
    assert [first["kl"][end] for end in ("value", "low", "high")] == pytest.approx([0.02, 0.015, 0.025])
    body = payload(made(without=["prompts"]).reader)["audit"]
    assert body["robustness"]["prompts"] is None
    assert body["missing"]["prompts"] == "PromptPerturbation was not run"


def test_an_empty_run_has_a_page() -> None:
    body = payload(MadeRun().reader)
    assert body["verdict"]["sentence"].startswith("Nothing was recorded")
    assert (body["main"], body["panels"], body["grids"]) == ([], [], [])


def test_the_page_is_closed_to_the_network() -> None:
    columns = Columns()
    body = run_payload(columns, MadeRun().reader, [], name="</title><script>x</script>")
    text = page(columns.pack(body), body)
    assert "default-src 'none'" in text
    assert "connect-src 'none'" in text
    assert "<script>x" not in text
    outside = text.replace("http://www.w3.org/2000/svg", "")
    for start in ("src=", "@import", "url("):
        assert start not in outside.split("<style>")[0] + outside.split("</style>")[1].split("<script>")[0]
    assert "unsafe" not in text.split("<style>")[0]
    assert as_text(columns.pack(body)) in text


def test_what_draws_is_small() -> None:
    import gzip

    size = len(gzip.compress("".join(assets()).encode()))
    assert size <= 270_000


def test_a_page_needs_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from findings.made_run import MadeRun; "
        "from learnscope.run import Run; run = MadeRun(); run.loss(1, 1.0); run.loss(2, 0.5); "
        "print(Run(run.reader.backend).page(sys.argv[2])); "
        "assert not {'torch', 'matplotlib', 'sklearn', 'scipy.stats'} & set(sys.modules)"
    )
    tests = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tests), str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "report.html").is_file()


def test_a_wheel_has_the_front_end(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    source = tmp_path / "source"  # building leaves files behind
    shutil.copytree(
        root / "src" / "learnscope", source / "src" / "learnscope", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    building = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
        str(source),
    ]
    built = subprocess.run(building, capture_output=True, text=True, timeout=120, check=False)
    if built.returncode and "setuptools" in built.stderr:
        pytest.skip("building a wheel needs setuptools")
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    here = {path.name for path in (root / "src/learnscope/report/page/assets").iterdir()}
    assert {f"learnscope/report/page/assets/{name}" for name in here} <= names
    assert "learnscope/report/report.schema.json" in names
    assert "uPlot.LICENSE" in here
