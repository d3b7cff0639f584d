"""Run folders of other or older writers, with characters as they are that this version writes as escapes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import learnscope as ls
from hostile.test_names import dangerous, recorded
from learnscope.cli import main
from learnscope.store.frame import frame_of

BAD = "a\u202egnp\u2066\x7f\x9b31m\u2028é"
SHOWN = "a\\u202egnp\\u2066\\u007f\\u009b31m\\u2028é"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose writer knew of no escapes: the name of a module stands in every file as it is."""
    folder = tmp_path_factory.mktemp("foreign") / "run"
    recorded("plainname", folder)
    for file in ("run.json", "records.jsonl"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace("plainname", BAD), encoding="utf-8")
    assert BAD in (folder / "records.jsonl").read_text(encoding="utf-8")
    other = Path(shutil.copytree(folder, folder.parent / "other")) / "records.jsonl"
    other.write_text(other.read_text(encoding="utf-8").replace('"values":[0.', '"values":[1.'), encoding="utf-8")
    return folder


def test_names_are_read_as_visible_escapes(foreign: Path) -> None:
    run = ls.open_run(foreign)
    assert run.problems == []
    scopes = set(run.frame()["scope"])
    assert any(SHOWN in scope for scope in scopes)
    assert dangerous("".join(map(str, scopes))) == []
    assert dangerous(json.dumps(run.manifest, ensure_ascii=False)) == []
    one_by_one = frame_of(run.records())
    assert list(one_by_one["scope"]) == list(run.frame()["scope"])


def test_a_page_shows_nothing_dangerous(foreign: Path, tmp_path: Path) -> None:
    page = ls.open_run(foreign).report(tmp_path / "report").read_text(encoding="utf-8")
    assert dangerous(page) == []
    assert (
        dangerous(
            ls.compare([foreign, foreign.parent / "other"]).save(tmp_path / "compared").read_text(encoding="utf-8")
        )
        == []
    )


@pytest.mark.parametrize(
    "command",
    [
        ["report", "RUN", "--out", "OUT"],
        ["compare", "RUN", "OTHER"],
        ["query", "select distinct scope, labels from records", "RUN"],
        ["query", "select distinct scope, labels from records", "RUN", "--csv"],
        ["query", "select distinct scope, labels from records", "RUN", "--json"],
        ["query", "select manifest from runs", "RUN", "--json"],
        ["query", f'select "{BAD}" from records', "RUN"],
    ],
    ids=lambda command: " ".join(command[:1] + command[3:]),
)
def test_a_terminal_shows_nothing_dangerous(
    command: list[str], foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        [
            {"RUN": str(foreign), "OTHER": str(foreign.parent / "other"), "OUT": str(tmp_path)}.get(word, word)
            for word in command
        ]
    )
    printed = capsys.readouterr()
    assert printed.out + printed.err
    assert dangerous(printed.out + printed.err) == []
    if "--json" in command:
        assert json.loads(printed.out)


def test_a_run_that_was_compacted_from_such_lines(foreign: Path, tmp_path: Path) -> None:
    shutil.copytree(foreign, tmp_path / "run")
    before = ls.open_run(tmp_path / "run").frame()
    ls.open_run(tmp_path / "run").compact()
    after = ls.open_run(tmp_path / "run").frame()
    assert list(after["scope"]) == list(before["scope"])
    assert list(after["value"].dropna()) == list(before["value"].dropna())


def test_a_live_run_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(ls.Probe):
        def measure(self, moment: ls.Moment) -> None:
            raise RuntimeError("a\x1b[31mred\u202e")

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = ls.watch(model, optimizer, probes=[Failing()], sinks=[ls.ConsoleSink()])
    model(torch.ones(1, 2)).sum().backward()
    with pytest.warns(ls.ProbeWarning):
        optimizer.step()
    w.close()
    printed = capsys.readouterr().out
    assert "failed" in printed
    assert dangerous(printed) == []
