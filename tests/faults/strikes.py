"""What happens to a training in faulty_run.py: ten kinds, each with a beginning and, where it can be undone, an end."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

DISK = 4 * 2**20
SECONDS = 60
"""How long to wait for what must come."""


class Strike:
    def __init__(self, plan: Any, w: Any, folder: Path) -> None:
        self.plan, self.w, self.folder = plan, w, folder

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None: ...

    def end(self) -> None: ...


class FullDisk(Strike):
    """Everything that was free is taken, up to some bytes."""

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.filler = self.folder.with_name("filler")
        with contextlib.suppress(OSError), self.filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        os.truncate(self.filler, max(0, self.filler.stat().st_size - int(self.plan.share * 12_000)))

    def end(self) -> None:
        self.filler.unlink()


class SizeLimit(Strike):
    """No file may grow beyond some bytes more than the records have."""

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = 4096 + (self.folder / "records.jsonl").stat().st_size + int(self.plan.share * 8000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, self.before[1]))

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


class ReadOnlyFolder(Strike):
    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        for folder in self._folders():
            folder.chmod(0o555)

    def end(self) -> None:
        for folder in self._folders():
            folder.chmod(0o755)

    def _folders(self) -> Iterator[Path]:
        yield self.folder
        yield from (path for path in self.folder.iterdir() if path.is_dir())


class VanishedFolder(Strike):
    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        if self.plan.chooses("removed", "moved") == "removed":
            shutil.rmtree(self.folder)
        else:
            self.folder.rename(self.folder.with_name("moved"))


class TruncatedFile(Strike):
    """Half of the time the records, else any file."""

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        chosen = self.plan.chooses(*files, *[self.folder / "records.jsonl"] * len(files))
        size = chosen.stat().st_size
        os.truncate(chosen, self.plan.seed * 37 % max(1, size))
        print(f"cut {chosen.relative_to(self.folder)}", flush=True)


class RefusedRename(Strike):
    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.before = os.replace
        number = self.plan.chooses(errno.EACCES, errno.EXDEV, errno.EBUSY, errno.EIO)

        def refuse(source: Any, *_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number), str(source))

        os.replace = refuse

    def end(self) -> None:
        os.replace = self.before


class Signal(Strike):
    """Some thousandths of a second later, wherever the loop is then."""

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        number = getattr(signal, self.plan.kind)
        threading.Timer(self.plan.share / 20, os.kill, (os.getpid(), number)).start()
        threading.Timer(SECONDS, os._exit, (1,)).start()


class BrokenLoop(Strike):
    """In the loop itself, in the model's forward, or in a backward."""

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        errors = (ValueError("broken"), KeyError("broken"), KeyboardInterrupt("broken"), SystemExit(3))
        error: BaseException = errors[self.plan.seed % len(errors)]

        def broken(*_: Any) -> None:
            raise error

        place = self.plan.chooses("loop", "forward", "backward", "step")
        if place == "loop":
            broken()
        elif place == "forward":
            model[-1].register_forward_hook(broken)  # type: ignore[index]
        elif place == "backward":
            next(model.parameters()).register_hook(broken)
        else:
            optimizer.register_step_pre_hook(broken)


class ForkedChild(Strike):
    """A child that goes on training, and ends in one way or another; the parent waits for it."""

    def begin(self, model: nn.Module, optimizer: Optimizer) -> None:
        child = os.fork()
        if child == 0:
            for _ in range(3):
                model(next(model.parameters()).new_zeros(2, 6)).square().mean().backward()
                optimizer.step()
                self.w.log(loss=1.0)
            self.w.save_state()
            self.w.end_epoch()
            self._leave()
        for _ in range(100 * SECONDS):
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                return
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise TimeoutError("the forked child does not end")

    def _leave(self) -> None:
        way = self.plan.chooses("close", "exit", "leave", "kill", "terminate")
        if way == "close":
            self.w.close()
        elif way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif way == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        elif way == "leave":
            os._exit(0)
        sys.exit(0)


STRIKES: dict[str, type[Strike]] = {
    "full disk": FullDisk, "size limit": SizeLimit, "read-only folder": ReadOnlyFolder,
    "vanished folder": VanishedFolder, "truncated file": TruncatedFile, "refused rename": RefusedRename,
    "SIGTERM": Signal, "SIGKILL": Signal, "broken loop": BrokenLoop, "forked child": ForkedChild,
}  # fmt: skip
