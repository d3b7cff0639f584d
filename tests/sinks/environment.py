"""An environment with MLflow and Trackio, which want older versions of packages than the other tests run with.

    python tests/sinks/environment.py      makes it if it is not there, and prints its interpreter

Torch and whatever else this environment has is reused through a .pth file, as in bench/peers/environments.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
PACKAGES = {"mlflow": "3.17.2", "trackio": "0.43.0"}
OTHERWISE = ("pyarrow", "pillow")
"""What these want in another version: MLflow an older pyarrow, Trackio an older Pillow."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "learnscope-trackers"


def trackers_environment(cache: Path = CACHE) -> Path:
    """The interpreter of the environment, made if it is not there; what goes wrong is raised with pip's own words."""
    home = cache / "-".join(f"{name}-{version}" for name, version in PACKAGES.items())
    python, made = home / "bin" / "python", home / "made"
    if made.is_file():
        return python
    _run([sys.executable, "-m", "venv", str(home)])
    site = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    reused = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (Path(site) / "reused.pth").write_text("\n".join(reused) + "\n")
    pins = [line for line in CONSTRAINTS.read_text().splitlines() if line.split("==")[0].lower() not in OTHERWISE]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("\n".join(pins) + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraints)]
        _run([*pip, *(f"{name}=={version}" for name, version in PACKAGES.items())])
    made.touch()
    return python


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    print(trackers_environment())
