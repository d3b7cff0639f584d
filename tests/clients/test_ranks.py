"""Two processes that train one model; see test_clients.py."""

from __future__ import annotations

import json
from pathlib import Path

from forked import start_program


def test_two_ranks_of_one_model(tmp_path: Path) -> None:
    program = Path(__file__).with_name("two_ranks.py")
    outs, errors = ([tmp_path / f"{kind}-{rank}" for rank in (0, 1)] for kind in ("out", "error"))
    processes = [
        start_program(program, str(rank), str(tmp_path), folder=tmp_path, out=outs[rank], error=errors[rank])
        for rank in (0, 1)
    ]
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0, 0], "\n".join(path.read_text()[-3000:] for path in errors)
    said = [json.loads(out.read_text().splitlines()[-1]) for out in outs]
    assert said == [{"rank": rank, "steps": 6} for rank in (0, 1)]
