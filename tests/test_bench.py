"""The benchmarks run, and the page of them says what their files say: figures are for `make bench`, where nothing else
disturbs them.
"""

from __future__ import annotations

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forked import run_program

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"
SCRIPTS = sorted(BENCH.glob("*.py"))

sys.path.append(str(BENCH))
from peers import environments  # noqa: E402  (found by the line above)
from tools import table  # noqa: E402
from tools.claims import Claim, keep  # noqa: E402
from tools.loops import in_turns, mlp  # noqa: E402


def test_every_benchmark_can_be_imported_and_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    assert SCRIPTS
    for script in SCRIPTS:
        monkeypatch.setattr(sys, "argv", [str(script), "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        assert ended.value.code == 0, script.name
        assert "--quick" in capsys.readouterr().out, script.name


@pytest.mark.soak
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_benchmark_runs(script: Path, tmp_path: Path) -> None:
    result = run_program(script, "--quick", folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()


def test_the_page_of_benchmarks_is_what_their_files_give() -> None:
    results, _ = table.read()
    assert (ROOT / "docs" / "benchmarks.md").read_text() == table.page(results), "run `python bench/tools/table.py`"


def test_every_claim_with_a_bound_has_enough_runs_and_a_script() -> None:
    results, _ = table.read()
    assert not [fault for one in results for fault in one.faults()]
    assert {one.script for one in results} <= {script.stem for script in SCRIPTS}


@pytest.mark.parametrize(
    "claim",
    [
        Claim("few runs", [1.0] * 4, bound=2.0),
        Claim("few runs of a peer", [1.0] * 5, bound=2.0, peer="another 1.0", peer_runs=[1.0] * 4),
        Claim("a peer without runs", [1.0], peer="another 1.0"),
    ],
    ids=lambda claim: claim.name,
)
def test_too_few_runs_are_refused_by_name(claim: Claim, tmp_path: Path) -> None:
    keep("watch", [claim, Claim("enough", [1.0] * 5, bound=2.0), Claim("only reported", [1.0])], tmp_path)
    (results,), _ = table.read(tmp_path)
    (fault,) = results.faults()
    assert claim.name in fault


def test_a_row_says_figure_spread_limit_bound_verdict_and_peer(tmp_path: Path) -> None:
    claims = [
        Claim("wavering | piped", [1.02, 1.0, 1.06, 1.03, 1.01], 1.05, 1.0, peer="another 2.0", peer_runs=[1.5] * 5),
        Claim("missed", [3.0, 4.0, 5.0, 6.0, 7.0], bound=2.0, unit="s", threads=2, note="why"),
        Claim("held", [1.0] * 5, bound=2.0, note="why"),
    ]
    keep("watch", claims, tmp_path, absent={"a third 0.1": "it does something else"})
    (tmp_path / "older.json").write_text(json.dumps({"figures": {}, "bounds": {}}))
    results, others = table.read(tmp_path)
    assert others == ["older.json"]
    text = table.page(results)
    first, second, third = (row for row in text.splitlines() if row.startswith("| watch"))
    assert cells(first)[:7] == [
        "watch: wavering \\| piped", "1.02 (1 to 1.06, 5 runs)", "ratio", "1", "1.05", "**wavers**",
        "another 2.0: 1.5 (1.5 to 1.5, 5 runs)",
    ]  # fmt: skip
    assert cells(second)[:8] == ["watch: missed (1)", "5 (3 to 7, 5 runs)", "s", "", "2", "**missed**", "", "2"]
    assert cells(third)[0] == "watch: held (1)"
    assert cells(third)[5] == "held"
    assert f"A: {results[0].machine}" in text
    assert cells(third)[8] == f"A, {results[0].date}"
    assert "1. why\n" in text
    assert "- a third 0.1: it does something else\n" in text


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("| ").split(" | ")]


def test_all_scripts_run_although_one_fails_or_misses_its_bound(tmp_path: Path) -> None:
    for name, code in (("a", "1 / 0"), ("b", "raise SystemExit(1)"), ("c", "print('ran c')")):
        (tmp_path / "bench").mkdir(exist_ok=True)
        (tmp_path / "bench" / f"{name}.py").write_text(code)
    (tmp_path / "bench" / "tools").mkdir()
    (tmp_path / "bench" / "tools" / "table.py").write_text("print('the table')")
    python = Path(sys.executable).parent
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", "env", f"BIN={python}", "bench"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode != 0
    assert "ran c" in result.stdout
    assert "the table" in result.stdout
    assert "a bound missed, or an error: bench/a.py bench/b.py\n" in result.stdout


def test_an_exponent_is_the_slope_of_the_cost_over_the_size() -> None:
    growth = runpy.run_path(str(BENCH / "growth.py"))
    slope, intercept = growth["fit"]([10, 30, 90], [3e-3 * size**1.5 for size in (10, 30, 90)])
    assert slope == pytest.approx(1.5)
    assert math.exp(intercept) * 1e9**slope == pytest.approx(3e-3 * 1e9**1.5)
    assert [growth["rounded"](size) for size in (4_999.0, 1_000_000.0, 87.5, 3.0)] == [4_000, 1_000_000, 80, 9]


def test_watched_and_unwatched_steps_take_turns() -> None:
    one, other = mlp(), mlp()
    order: list[str] = []

    class Counts:
        def before_step(self, loss: Tensor) -> None:
            assert loss.grad_fn is not None
            assert next(one.model.parameters()).grad is not None
            order.append("watched")

        def after_step(self, loss: Tensor) -> None:
            order.append("stepped")

    other.optimizer.register_step_post_hook(lambda *_: order.append("plain"))
    watched, plain = in_turns(one, Counts(), other, 3)
    assert order == ["plain", "watched", "stepped", "watched", "stepped", "plain", "plain", "watched", "stepped"]
    assert watched > 0
    assert plain > 0
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)  # the same loop, on the same batches


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(BENCH / "peers.py"))

    def refuse(peer: environments.Peer, _: Path) -> Path:
        if peer.package == "wandb":
            environments._run([sys.executable, "-c", "raise SystemExit('no such wheel')"])
        return tmp_path / "python"

    monkeypatch.setitem(script["sides"].__globals__, "environment", refuse)
    found, missing = script["sides"](tmp_path, quick=False)
    assert missing["wandb 0.31.0"] == "it could not be installed: no such wheel"
    assert [side.name.split()[0] for side in found["gpt2"]] == ["tensorboard", "trainscope", "torch-audit"]
    assert {"traincheck 0.2.0", "trainproof 0.22.0"} < set(missing)
