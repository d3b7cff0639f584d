"""A file of lines: each whole, whatever happens to the disk or the process, and one writer at a time."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from learnscope.store import lines, locks
from learnscope.store.lines import LineFile
from learnscope.store.locks import Busy
from open_files import open_under


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """As on a disk that is full: the write that goes past it takes a part, the next one nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_are_added_at_the_end_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "lines"
    for text in ("one", "zwei ü", ""):
        file = LineFile(path)
        file.append(text)
        file.close()
    assert path.read_text(encoding="utf-8") == "one\nzwei ü\n\n"


def test_a_line_that_does_not_fit_leaves_no_trace_and_the_next_one_is_whole(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines")
    file.append("a" * 50)
    with files_no_longer_than(80):
        with pytest.raises(OSError, match="29 of 101 bytes fitted"):
            file.append("b" * 100)  # 29 bytes of it fit
        assert (tmp_path / "lines").read_text() == "a" * 50 + "\n"
        file.append("c" * 28)  # and this just fits
        with pytest.raises(OSError):
            file.append("d")
    file.append("e")
    file.close()
    assert (tmp_path / "lines").read_text().splitlines() == ["a" * 50, "c" * 28, "e"]


def test_a_device_that_is_full(tmp_path: Path) -> None:
    (tmp_path / "lines").symlink_to("/dev/full")
    file = LineFile(tmp_path / "lines")
    with pytest.raises(OSError):
        file.append("a")


@pytest.mark.parametrize("torn", [b"whole\nhal", b"hal", b"\xff\xfe"])
def test_a_torn_last_line_is_ended_before_anything_is_added(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "lines").write_bytes(torn)
    file = LineFile(tmp_path / "lines")
    assert (tmp_path / "lines").read_bytes() == torn + b"\n"
    with files_no_longer_than(len(torn) + 4), pytest.raises(OSError):
        file.append("too long")
    assert (tmp_path / "lines").read_bytes() == torn + b"\n"
    file.append("next")
    file.close()
    assert (tmp_path / "lines").read_bytes() == torn + b"\nnext\n"


@pytest.mark.parametrize("there", [b"", b"whole\n"])
def test_a_file_that_ends_well_is_not_touched_by_opening_it(tmp_path: Path, there: bytes) -> None:
    (tmp_path / "lines").write_bytes(there)
    LineFile(tmp_path / "lines").close()
    assert (tmp_path / "lines").read_bytes() == there


class TestOneWriter:
    def test_a_second_one_is_refused_until_the_first_closes(self, tmp_path: Path) -> None:
        first = LineFile(tmp_path / "lines")
        with pytest.raises(Busy):
            LineFile(tmp_path / "lines")
        first.append("still mine")
        first.close()
        LineFile(tmp_path / "lines").close()
        assert (tmp_path / "lines").read_text() == "still mine\n"

    def test_refusing_leaves_no_file_open(self, tmp_path: Path) -> None:
        first = LineFile(tmp_path / "lines")
        before = open_under(tmp_path)
        assert before
        for _ in range(20):
            with pytest.raises(Busy):
                LineFile(tmp_path / "lines")
        assert open_under(tmp_path) == before
        first.close()

    def test_a_killed_process_leaves_no_lock(self, tmp_path: Path) -> None:
        program = (
            "import sys, time; from pathlib import Path; from learnscope.store.lines import LineFile\n"
            "kept = LineFile(Path(sys.argv[1])); kept.append('theirs'); print('open', flush=True); time.sleep(600)"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "lines")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            with pytest.raises(Busy):
                LineFile(tmp_path / "lines")
            process.kill()
        file = LineFile(tmp_path / "lines")
        file.append("mine")
        file.close()
        assert (tmp_path / "lines").read_text() == "theirs\nmine\n"


def test_closed_is_closed(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="lines is closed"):
        file.append("late")
    assert (tmp_path / "lines").read_bytes() == b""


def in_a_child(action: Callable[[], object]) -> int:
    """Run it in a forked child, as a loader's worker inherits what the training has open; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:  # noqa: BLE001  (nothing of the child may go on as if it were the test)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_forked_child_that_closes_does_not_give_the_lock_away(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines")
    assert in_a_child(file.close) == 0
    with pytest.raises(Busy):
        LineFile(tmp_path / "lines")
    file.append("still mine")
    file.close()
    assert (tmp_path / "lines").read_text() == "still mine\n"


def test_a_forked_child_that_lives_on_does_not_hold_the_lock(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # until the test is over
        os._exit(0)
    try:
        file.close()
        LineFile(tmp_path / "lines").close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_cannot_be_copied(tmp_path: Path, copying: Callable[[LineFile], object]) -> None:
    """A copy has the number of the open file, and would close it under this one."""
    file = LineFile(tmp_path / "lines")
    with pytest.raises(TypeError, match=r"lines cannot be copied or pickled"):
        copying(file)
    file.append("whole")
    file.close()


def test_a_file_removed_between_opening_and_locking_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As compacting a run does, which removes the lines under its own lock."""
    path = tmp_path / "lines"
    removed = []

    def lock_after_removal(file: int, path: Path) -> locks.Lock:
        if not removed:
            removed.append(path.unlink())
        return locks.Lock(file, path)

    monkeypatch.setattr(lines, "Lock", lock_after_removal)
    opened = LineFile(path)
    opened.append("kept")
    opened.close()
    assert path.read_text() == "kept\n"


# ---- what others do to the file


def test_a_removed_file_is_noticed_at_the_next_line(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "run" / "lines")
    file.append("a")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="was removed while it was being written"):
        file.append("b")
    file.close()


def test_a_file_that_another_process_cut_is_noticed_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = LineFile(path)
    file.append("first")
    file.append("second")
    os.truncate(path, 6)
    with pytest.raises(OSError, match="cut 7 bytes off the end"):
        file.append("third")
    file.append("fourth")
    file.close()
    assert path.read_text() == "first\nfourth\n"


def test_a_forked_child_writes_nothing_and_leaves_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = LineFile(path)
    file.append("parent")
    child = os.fork()
    if child == 0:
        file.append("child")
        file.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(Busy):
        LineFile(path)
    file.append("parent again")
    file.close()
    assert path.read_text() == "parent\nparent again\n"


# ---- a file system without flock


@pytest.fixture
def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)


@pytest.mark.usefixtures("without_flock")
def test_without_flock_there_is_still_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = LineFile(path)
    with pytest.raises(Busy):
        LineFile(path)
    assert locks.is_locked(path) is True
    file.append("a")
    file.close()
    LineFile(path).close()
    assert [found.name for found in tmp_path.iterdir()] == ["lines"], "no lock is left behind"


@pytest.mark.usefixtures("without_flock")
@pytest.mark.parametrize("owner", ['{"pid": 999999999, "host": "HERE"}', "torn", '{"pid": "x"}', "[1]"])
def test_a_lock_of_a_process_that_is_gone_is_taken_over(tmp_path: Path, owner: str) -> None:
    beside = tmp_path / ".lines.lock"
    beside.write_text(owner.replace("HERE", socket.gethostname()))
    if "HERE" not in owner:  # nothing tells whose it was: only its age does
        with pytest.raises(Busy):
            LineFile(tmp_path / "lines")
        os.utime(beside, (0, 0))
    LineFile(tmp_path / "lines").close()
    assert not beside.exists()


@pytest.mark.parametrize("error", [errno.EWOULDBLOCK, errno.EACCES])
def test_only_a_lock_that_is_held_is_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(error, "held")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.raises(Busy):
        LineFile(tmp_path / "lines")


def test_whether_a_file_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert locks.is_locked(path) is None
    file = LineFile(path)
    assert locks.is_locked(path) is True
    file.close()
    assert locks.is_locked(path) is False
