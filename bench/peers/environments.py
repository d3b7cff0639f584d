"""An environment for each peer, in a folder that is kept: its package with the project's constraints.

Torch and whatever else this environment has is reused through a .pth file and not installed again, so that both sides
run the same torch, and none that brings CUDA. Learnscope itself cannot be imported there: a .pth file of a folder that
was added by one is not read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    watcher: str
    package: str
    version: str
    does: str
    also: tuple[str, ...] = ()
    """What it imports without requiring it."""

    @property
    def name(self) -> str:
        return f"{self.package} {self.version}, {self.does}"


PEERS = (
    Peer("wandb", "wandb", "0.31.0", "histograms of all gradients, offline"),
    Peer("tensorboard", "tensorboard", "2.21.0", "`add_histogram` of all gradients"),
    Peer("trainscope", "trainscope", "1.8.1", "its defaults"),
    Peer("torch_audit", "torch-audit", "0.3.0", "all checks"),
)
ABSENT = {
    "trainproof 0.22.0": "it judges the log that a run has left behind and watches no loop",
    "traincheck 0.2.0": "it rewrites the script and traces torch in the whole process, where no loop is left unwatched "
    "to compare with; and it needs invariants that were inferred from another run",
}


class NotInstalled(Exception):
    """With the reason."""


def environment(peer: Peer, cache: Path) -> Path:
    """The interpreter of that peer's environment, made if it is not there."""
    home = cache / f"{peer.package}-{peer.version}"
    python = home / "bin" / "python"
    made = home / "made.json"
    if made.is_file():
        return python
    _run([sys.executable, "-m", "venv", str(home)])
    reused = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    site = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    (Path(site) / "reused.pth").write_text("\n".join(dict.fromkeys(reused)) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
    _run([*pip, f"{peer.package}=={peer.version}", *peer.also])
    made.write_text(json.dumps({"package": peer.package, "version": peer.version}) + "\n")
    return python


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotInstalled(last)
    return result.stdout
