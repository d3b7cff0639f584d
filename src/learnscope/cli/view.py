"""`learnscope view`: the live page of run folders."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from learnscope.cli.commands import command, fail
from learnscope.store.errors import RunError

MISSING = "the live page needs Starlette and uvicorn: pip install 'learnscope[dashboard]'"


def add(commands: Any) -> None:
    view = command(
        commands, "view", _view, "the live page: runs in a browser, growing while they train",
        "Serves the page of `learnscope report` for every run below a folder: listed, searched, opened, laid over each "
        "other, and growing while training goes on. It only reads: nothing is written into a run folder, and this "
        "machine alone can reach it. Ctrl-C ends it. Needs the packages of learnscope[dashboard], and no torch.",
        "examples:\n  learnscope view runs\n  learnscope view runs/a           one run\n"
        "  learnscope view runs --port 9000\n"
        "  learnscope view runs --host 0.0.0.0   for other machines too; the printed address has a token in it\n"
        "  ssh -L 8420:127.0.0.1:8420 server     from a laptop, with `learnscope view runs` on the server",
    )  # fmt: skip
    view.add_argument("runs", metavar="RUNS", nargs="*", default=["runs"], help="folders with runs (default: runs)")
    view.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (default: %(default)s, this machine alone)"
    )
    view.add_argument("--port", type=_port, help="the port (default: 8420, or a free one if that is taken)")
    view.add_argument(
        "--token", help="a word that the address must have; any host but this machine has one, by default a random one"
    )
    view.add_argument(
        "--name", dest="names", metavar="NAME", action="append", default=[],
        help="another name of this machine by which it is opened, such as that of a proxy",
    )  # fmt: skip
    view.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)


def _port(text: str) -> int:
    if not 0 <= int(text) < 65536:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text}")
    return int(text)


def _view(args: argparse.Namespace) -> int:
    from learnscope.cli.named import runs_near

    for folder in map(Path, args.runs):
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder: {runs_near(folder)}")
    try:
        from learnscope.live.access import Access, is_loopback
        from learnscope.live.server import Server, address, application, listen
    except ImportError as error:
        return fail("learnscope view", ImportError(f"{MISSING} ({error})"))
    import secrets

    token = args.token or (None if is_loopback(args.host) else secrets.token_urlsafe(18))
    access = Access(args.host, token, frozenset(name.lower() for name in args.names))
    app, pages = application(args.runs, access)
    listening = listen(args.host, args.port)
    print(
        f"learnscope view: {address(listening, access)}" + ("" if args.with_parent else "  (Ctrl-C ends it)"),
        flush=True,
    )
    server = Server(app, pages)
    if args.with_parent:
        threading.Thread(target=_end_with_parent, args=[server], daemon=True).start()
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    if not args.with_parent:
        print("learnscope view: ended")
    return 0


def _end_with_parent(server: Any) -> None:
    """Whoever started us holds the other end of our input, which closes when it ends, however it does."""
    if hasattr(os, "nice"):
        os.nice(5)  # the training comes first
    sys.stdin.buffer.read()
    server.should_exit = True
