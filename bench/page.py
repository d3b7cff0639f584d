"""The page of a long run: how large it is, how long it takes to write, to paint and to zoom, and whether a spike shows.

    python bench/page.py [--quick] [--runs 5] [--records 1000000]

A run of 10⁶ records with 48 layers, written in the store's own format: a loss at every step, gradient norms of all
layers and learning rates at every 20th, updates at every 100th, and one step at which the loss is 50 times as high.
`learnscope report` runs in a fresh process; the first time it parses the lines and leaves an index. The page is opened
in Debian's Chromium without a network: first paint is the first content on the screen, drawn is when the loss curve
stands there. A zoom is what redrawing a panel for another span takes. TensorBoard gets the same numbers as events, is
served on this machine and opened in the same browser: drawn is when its first chart stands there, and its spike is
looked for among the points that it sends to the browser.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from records import write_run
from tools.claims import Claim, keep, show

LAYERS, EVERY, SPIKE, SEEN = [f"h.{i}" for i in range(48)], 20, 50.0, 5.0
"""The spike is so many times the loss around it; what is drawn higher than the last number is the spike."""
ARGUMENTS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--no-first-run"]  # fmt: skip


def steps_of(records: int) -> int:
    """Steps that make about so many records."""
    return round(records / (1 + 2 / EVERY + 1 / 100))


def numbers(records: int) -> Iterator[tuple[int, float, list[float] | None, list[float] | None]]:
    """Step, loss, norms of the layers and their updates, where these are due."""
    rng, last = random.Random(0), steps_of(records)
    for step in range(1, last + 1):
        loss = 0.2 + 2 / (1 + step / 5000) + 0.02 * rng.random()
        norms = [(1 + place) * loss * (0.5 + rng.random()) for place in range(48)] if step % EVERY == 0 else None
        moved = [1e-3 * (1 + place % 7) * (0.5 + rng.random()) for place in range(48)] if step % 100 == 0 else None
        yield step, SPIKE * loss if step == last // 3 else loss, norms, moved


def lines(records: int) -> Iterator[str]:
    scopes = json.dumps(LAYERS, separators=(",", ":"))

    def line(probe: str, step: int, phase: str, tables: str) -> str:
        return (
            f'{{"probe":"{probe}","step":{step},"epoch":null,"phase":"{phase}","source":"watch","attempt":0,'
            f'"time":{1.7e9 + step / 100},"cost":0.001,"tables":[{tables}]}}\n'
        )

    def layers(name: str, values: list[float]) -> str:
        cells = ",".join(f"{value:.7g}" for value in values)
        return f'{{"kind":"layer","scopes":{scopes},"columns":[{{"name":"{name}","values":[{cells}]}}]}}'

    one = '{{"kind":"{}","scopes":["{}"],"columns":[{{"name":"{}","values":[{:.7g}]}}]}}'
    for step, loss, norms, moved in numbers(records):
        if norms is not None:
            rate = one.format("group", "group_0", "learning_rate", 1e-3 / (1 + step / 1e5))
            yield line("LearningRate", step, "before_step", rate)
            yield line("GradientFlow", step, "before_step", layers("norm", norms))
        yield line("Loss", step, "after_step", one.format("model", "model", "loss", loss))
        if moved is not None:
            yield line("ParameterChange", step, "after_step", layers("update_to_weight", moved))


def report(folder: Path, target: Path) -> float:
    """Processor seconds of `learnscope report` in a fresh process."""
    code = "import sys, time; from learnscope.cli import main; main(sys.argv[1:]); print(time.process_time())"
    command = [sys.executable, "-c", code, "report", str(folder), "--out", str(target)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def opened(browser: Any, page: Path, at: int, last: int) -> dict[str, float]:
    """Seconds to first paint and to the drawn loss, the slowest zoom, and how many of seven zooms hide the spike."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")
    tab.evaluate("document.getElementById('curves').scrollIntoView()")
    tab.wait_for_selector("#panel-main\\/loss canvas")
    drawn = tab.evaluate("performance.now()") / 1000
    paint = (
        tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? performance.now()") / 1000
    )
    hidden, slowest = 0, 0.0
    for half in (last, last // 2, last // 8, last // 40, 2000, 300, 40):
        span = [max(1, at - half), min(last, at + half)]
        slowest = max(slowest, tab.evaluate("""async span => {
            const start = performance.now();
            learnscope.zoomTo('main/loss', span);
            await new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));
            return performance.now() - start;
        }""", span))  # fmt: skip
        highest = tab.evaluate("Math.max(...learnscope.panels.get('main/loss').plot.data[1].filter(v => v != null))")
        hidden += highest < SEEN
    context.close()
    return {"paint": paint, "drawn": drawn, "zoom": slowest, "hidden": hidden}


def write_events(folder: Path, records: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder), max_queue_size=10_000)
    for step, loss, norms, moved in numbers(records):
        values = [Summary.Value(tag="loss", simple_value=loss)]
        values += [Summary.Value(tag=f"norm/{n}", simple_value=v) for n, v in zip(LAYERS, norms or [], strict=False)]
        values += [Summary.Value(tag=f"update/{n}", simple_value=v) for n, v in zip(LAYERS, moved or [], strict=False)]
        writer.add_event(Event(wall_time=1.7e9 + step / 100, step=step, summary=Summary(value=values)))
    writer.close()


def tensorboard(browser: Any, folder: Path, last: int, runs: int) -> dict[str, list[float]]:
    """Seconds until it has read its events; from opening its page to the first chart; and zooms that hide the spike."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started, address = time.perf_counter(), f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        points: list[list[float]] = []
        # it reads its events bit by bit: all of them are there when the last step is
        while (not points or points[-1][1] < 0.97 * last) and time.perf_counter() - started < 1200:
            time.sleep(0.5)
            asking = urllib.parse.urlencode({"run": ".", "tag": "loss"})
            points = asked(f"{address}/data/plugin/scalars/scalars?{asking}") or points
        read = time.perf_counter() - started
        hidden = 7.0 * (max((value for _, _, value in points), default=0.0) < SEEN)
        drawn = [chart(browser, address) for _ in range(runs)]
        return {"read": [read], "drawn": drawn, "hidden": [hidden] * runs}
    finally:
        server.terminate()
        server.wait(20)


def chart(browser: Any, address: str) -> float:
    """Seconds from opening its page to the first chart."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    tab = context.new_page()
    start = time.perf_counter()
    tab.goto(address)
    tab.wait_for_selector("line-chart", timeout=120_000)
    seconds = time.perf_counter() - start
    context.close()
    return seconds


def asked(address: str) -> Any:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError):
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run of 20,000 records, without TensorBoard")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    records, runs = (20_000, 1) if options.quick else (options.records, options.runs)
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as root, sync_playwright() as playwright:
        folder, last = Path(root) / "run", steps_of(records)
        model = {"class": "Net", "parameters": 48_000_000, "tensors": 96, "layers": LAYERS}
        write_run(folder, lines(records), probes={}, model=model)
        first = report(folder, Path(root) / "out")
        seconds = [report(folder, Path(root) / "out") for _ in range(runs)]
        page = Path(root) / "out" / "report.html"
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        seen = [opened(browser, page, last // 3, last) for _ in range(runs)]
        peer: dict[str, list[float]] = {}
        if not options.quick:
            write_events(Path(root) / "events", records)
            peer = tensorboard(browser, Path(root) / "events", last, runs)
        browser.close()
        size = page.stat().st_size / 1e6
    named = f"{records:,} records, 48 layers"

    def beside(what: str) -> dict[str, Any]:
        return {"peer": "TensorBoard 2.21.0", "peer_runs": peer.get(what, []), "threads": 2} if peer else {}

    claims = [
        Claim(f"size of the page of {named}", [size] * runs, bound=3.0, unit="MB", note="the same file every time"),
        Claim(f"writing it the first time, {named}", [first], unit="s of CPU"),
        Claim(f"writing it again, {named}", seconds, unit="s of CPU"),
        Claim(f"first paint in Chromium, {named}", [s["paint"] for s in seen], bound=1.0, unit="s", threads=2),
        Claim(f"loss drawn in Chromium, {named}", [s["drawn"] for s in seen], unit="s", **beside("drawn")),
        Claim(f"slowest zoom, {named}", [s["zoom"] for s in seen], bound=200.0, unit="ms", threads=2),
        Claim(f"zooms of seven that hide a spike of one step, {named}", [s["hidden"] for s in seen], bound=0.0,
              unit="zooms", **beside("hidden")),
    ]  # fmt: skip
    if peer:
        claims.append(Claim(f"TensorBoard reading its events of the same numbers, {named}", peer["read"], unit="s"))
    held = show(claims)
    if options.quick:
        return 0
    keep("page", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
