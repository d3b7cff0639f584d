"""A run read through its index is the run read record by record; an index that is not its own is noticed."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import learnscope as ls
from learnscope.record import Column, ProbeWarning, Record, Table
from learnscope.store.backend import FolderBackend, RunError
from learnscope.store.columnar import decode, index
from learnscope.store.columnar.column_frame import frame_from
from learnscope.store.frame import frame_of
from store.awkward import append, assert_identical, plain, write_run

EARLIER = sorted(path for path in (Path(__file__).parents[1] / "earlier" / "folders").iterdir() if path.is_dir())
TORN = plain().to_json().encode()[:60]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes from the first byte on, of several segments."""
    monkeypatch.setattr(index, "WORTH_KEEPING", 1)
    monkeypatch.setattr(decode, "NUMBERS_A_SEGMENT", 200)
    monkeypatch.setattr(decode, "PIECE", 4000)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pieces of lines that were taken apart."""
    sizes: list[int] = []
    real = decode.take_apart

    def counted(lines: bytes) -> decode.Pieces:
        sizes.append(len(lines))
        return real(lines)

    monkeypatch.setattr(decode, "take_apart", counted)
    return sizes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with labels that are numbers, a spike, failures, notes, a torn line, and an attempt that was superseded."""
    chance = random.Random(0)
    written: list[Record | bytes] = []
    for step in range(120):
        columns = [Column("norm", [chance.random(), None], {"threshold": 10.0 ** -(step % 2)}, {1: "no gradient"})]
        notes = {"span": [step, step + 1]} if step % 3 else {}
        written.append(plain(step, probe="A", tables=[Table("layer", ["a", "b"], columns)], notes=notes))
        written.append(plain(step, probe="B", attempt=step // 100, epoch=None if step < 9 else step // 10))
        if step % 50 == 7:
            written.append(plain(step, probe="B", tables=[], error=f'Value "{step}": bad'))
    written.insert(70, TORN)
    return write_run(tmp_path / "r", written, [0, 90])


def assert_read_as_ever(folder: Path) -> None:
    """Frame, records, heads and last step from the columns, against the records one by one."""
    run = ls.open_run(folder)
    records = list(run.records())
    problems = run.last_problems
    columns = run.columns()
    assert run.last_problems == problems
    assert list(map(repr, columns.records())) == list(map(repr, records))
    assert_identical(frame_from(columns), frame_of(records))
    assert run.last_step == max((record.step for record in records), default=0)
    for probe in columns.heads.probes:
        assert_identical(frame_from(columns, probe), frame_of(run.records(probe)))
        spans = [(record.step, record.notes["span"]) for record in run.records(probe) if "span" in record.notes]
        assert columns.notes(probe, "span") == spans
    assert columns.heads.probes == list(dict.fromkeys(record.probe for record in records))
    assert columns.heads.cost.tolist() == [record.cost for record in records]
    assert columns.heads.errors == {place: record.error for place, record in enumerate(records) if record.error}
    assert_identical(frame_from(run.columns(superseded=True)), frame_of(run.records(superseded=True)))


def words(folder: Path) -> list[Path]:
    return sorted((folder / "index").glob("*.words"), key=lambda path: int(path.name.split("-")[0]))


def test_made_and_read_again(folder: Path, parsed: list[int]) -> None:
    assert_read_as_ever(folder)
    assert len(words(folder)) > 2
    parsed.clear()
    assert_read_as_ever(folder)
    assert parsed == []


@pytest.mark.parametrize("earlier", EARLIER, ids=lambda path: path.name)
def test_runs_of_earlier_versions(
    earlier: Path, tmp_path: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "NUMBERS_A_SEGMENT", 10_000)
    monkeypatch.setattr(decode, "PIECE", 100_000)
    folder = Path(shutil.copytree(earlier, tmp_path / "run"))
    with monkeypatch.context() as without:
        without.setattr(index, "WORTH_KEEPING", 1 << 30)
        before = ls.open_run(folder).findings()
    assert not (folder / "index").exists()
    ls.open_run(folder).columns()
    parsed.clear()
    assert ls.open_run(folder).findings() == before
    assert_read_as_ever(folder)
    assert parsed == []


def test_what_is_appended_is_all_that_is_parsed(folder: Path, parsed: list[int]) -> None:
    ls.open_run(folder).columns()
    size = (folder / "records.jsonl").stat().st_size
    append(folder, [plain(500, attempt=1), plain(501, attempt=1)])
    parsed.clear()
    assert ls.open_run(folder).last_step == 501
    assert sum(parsed) == (folder / "records.jsonl").stat().st_size - size
    assert_read_as_ever(folder)


def test_a_line_that_is_being_written_is_not_kept(folder: Path) -> None:
    line = plain(700, attempt=1).to_json().encode()
    with (folder / "records.jsonl").open("ab") as file:
        file.write(line[:40])
        file.flush()
        assert len(ls.open_run(folder).problems) == 2
        assert_read_as_ever(folder)
        file.write(line[40:] + b"\n")
    assert ls.open_run(folder).last_step == 700
    assert len(ls.open_run(folder).problems) == 1


def other_bytes(folder: Path) -> None:
    """The same length, and other numbers in the middle; the times are as they were."""
    path = folder / "records.jsonl"
    there, data = path.stat(), bytearray(path.read_bytes())
    at = data.index(b'"values":[0.', len(data) // 2) + len(b'"values":[')
    data[at : at + 1] = b"7"
    path.write_bytes(data)
    os.utime(path, ns=(there.st_atime_ns, there.st_mtime_ns))


def cut_short(folder: Path) -> None:
    path = folder / "records.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\n", 0, len(data) - 3000) + 1])


def replaced(folder: Path) -> None:
    shutil.rmtree(folder / "index", ignore_errors=True)
    write_run(folder.parent / "other", [plain(step) for step in range(300)])
    ls.open_run(folder.parent / "other").columns()
    shutil.copytree(folder.parent / "other" / "index", folder / "index")


def no_words(folder: Path) -> None:
    words(folder)[1].unlink()


def short_words(folder: Path) -> None:
    words(folder)[0].write_bytes(words(folder)[0].read_bytes()[:-8])


def one_bit(folder: Path) -> None:
    for path in words(folder):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def catalog_bit(folder: Path) -> None:
    path = folder / "index" / "catalog.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def catalog_of(folder: Path) -> Any:
    return json.loads((folder / "index" / "catalog.json").read_text().partition("\n")[2])


def with_right_sum(folder: Path, body: Any) -> None:
    text = json.dumps(body)
    (folder / "index" / "catalog.json").write_text(f"{zlib.crc32(text.encode())}\n{text}")


def later_schema(folder: Path) -> None:
    with_right_sum(folder, catalog_of(folder) | {"schema": 99, "segments": "?"})


def foreign_file(folder: Path) -> None:
    """An entry whose file lies outside: it is not of this index, and nothing outside is removed."""
    body = catalog_of(folder)
    body["segments"][0]["file"] = "../run.json"
    with_right_sum(folder, body)


HARMS = [foreign_file, other_bytes, cut_short, replaced, no_words, short_words, one_bit, catalog_bit, later_schema]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_an_index_that_is_stale_or_damaged_is_made_again(
    folder: Path, harm: Callable[[Path], None], parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_SETTLED_SECONDS", -1.0)  # times are trusted at once
    ls.open_run(folder).columns()
    harm(folder)
    assert_read_as_ever(folder)
    ls.open_run(folder).columns()
    parsed.clear()
    assert_read_as_ever(folder)
    assert parsed == []


def test_times_of_a_file_just_written_are_not_trusted(folder: Path) -> None:
    ls.open_run(folder).columns()
    catalog = (folder / "index" / "catalog.json").read_text().partition("\n")[2]
    assert json.loads(catalog)["file"] is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes wherever it likes")
def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert_read_as_ever(folder)
        assert not (folder / "index").exists()
    finally:
        folder.chmod(stat.S_IRWXU)


def test_a_full_disk_while_the_index_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def full(path: Path, arrays: object) -> None:
        written.append(path)
        if len(written) == 2:
            raise OSError("no space left")
        real(path, arrays)  # type: ignore[arg-type]

    real = index.write_words
    monkeypatch.setattr(index, "write_words", full)
    assert_read_as_ever(folder)
    assert list((folder / "index").glob(".*.tmp")) == []
    assert_read_as_ever(folder)


def test_what_a_killed_reader_left_is_removed_by_the_next_writer(folder: Path) -> None:
    ls.open_run(folder).columns()
    old, new = (folder / "index" / f".0-9-aaaaaaaaaaaa.words.{name}.tmp" for name in ("abcdefgh", "ijklmnop"))
    for path in (old, new):
        path.write_bytes(b"part")
    os.utime(old, (0, 0))
    append(folder, [plain(500, attempt=1)])
    FolderBackend.existing(folder).hold()
    assert (old.exists(), new.exists()) == (False, True)  # the other reader may still be writing
    assert_read_as_ever(folder)


def test_a_closed_session_leaves_an_index(tmp_path: Path, parsed: list[int]) -> None:
    pytest.importorskip("torch")  # what reads runs does without it
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.Loss(), ls.GradientFlow(every=2)]) as w:
        for _ in range(8):
            loss = model(torch.ones(2, 3)).square().mean()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    parsed.clear()
    assert_read_as_ever(tmp_path / "run")
    assert parsed == []


def test_an_index_that_fails_is_said_and_does_not_fail_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> Iterator[object]:
        raise MemoryError

    monkeypatch.setattr(index, "indexed", broken)
    backend = FolderBackend(tmp_path / "run")
    backend.append(plain().to_json())
    with pytest.warns(ProbeWarning, match=r"has no index, and will be read more slowly \(MemoryError"):
        backend.close()
    assert [record.step for record in FolderBackend(tmp_path / "run").records([])] == [plain().step]


def test_records_that_vanish_under_an_index_are_named(folder: Path) -> None:
    run = ls.open_run(folder)
    columns = run.columns()
    (folder / "records.jsonl").unlink()
    for path in words(folder):
        path.unlink()
    with pytest.raises(RunError, match=r"records\.jsonl"):
        frame_from(columns)


def test_only_what_is_asked_for_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by what is shown: a series does not read the numbers of the others."""
    ls.open_run(folder).columns()
    read: list[int] = []
    real = index.Words.read_rows

    def counted(words: index.Words, offset: int, count: int, checks: list[int]) -> object:
        read.append(count * len(checks))
        return real(words, offset, count, checks)

    monkeypatch.setattr(index.Words, "read_rows", counted)
    columns = ls.open_run(folder).columns()
    records = len(columns.heads)
    read.clear()
    frame = frame_from(columns, "A", "norm")
    assert isinstance(frame, pd.DataFrame)
    in_all = sum(path.stat().st_size for path in words(folder)) // 8
    assert 0 < sum(read) < in_all / 2
    read.clear()
    assert ls.open_run(folder).last_step
    assert sum(read) <= 6 * records
