"""The server of the live page.

/          the page: of all runs; with ?run=NAME of one; with ?run=A&run=B of both laid over each other
/events    a line whenever there is a new version of it (server-sent events)
/changes   what a browser lacks of the new version
/data      the whole page again, for a browser whose layout is another
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from learnscope.live.access import Access, Guarded
from learnscope.live.changes import Wanted
from learnscope.live.pages import Page
from learnscope.live.shelf import Shelf
from learnscope.report.page.html import page as html_page
from learnscope.store.backend import RunError

POLL, HEARTBEAT = 0.4, 15.0
"""Seconds between two looks at the files of a page that somebody has open, and between two signs of life."""
PAUSE_AFTER_A_PROBLEM = 2.0
MOST_PANELS, MOST_RUNS, MOST_PAGES = 300, 24, 64
PORT = 8420


class Pages:
    """The pages that browsers have asked for, and the answers to them."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.server = shelf, secrets.token_hex(6)
        self.ends = False
        self._pages: OrderedDict[tuple[str, ...], Page] = OrderedDict()

    def page_of(self, request: Request) -> Page:
        names = tuple(dict.fromkeys(request.query_params.getlist("run")))[:MOST_RUNS]
        there = self.shelf.names()
        if any(name not in there for name in names):
            raise KeyError("there is no such run here")
        if not names and there and self.shelf.is_one_run:
            names = (there[0],)
        page = self._pages.setdefault(names, Page(self.shelf, names, self.server))
        self._pages.move_to_end(names)
        while len(self._pages) > MOST_PAGES:
            self._pages.popitem(last=False)
        return page

    async def html(self, request: Request) -> Response:
        page = self.page_of(request)
        packed, body = await asyncio.to_thread(page.packed)
        return HTMLResponse(html_page(packed, body, connect="'self'"))

    async def data(self, request: Request) -> Response:
        page = self.page_of(request)
        return _bytes((await asyncio.to_thread(page.packed))[0])

    async def changes(self, request: Request) -> Response:
        page, query = self.page_of(request), request.query_params
        try:
            version = int(query.get("version", 0)) if query.get("server") == self.server else 0
            wanted = [Wanted.of(text) for text in query.getlist("panel")[:MOST_PANELS]]
        except ValueError:
            return PlainTextResponse("version=NUMBER and panel=VERSION:STEP:ID are needed\n", status_code=400)
        snapshot = await asyncio.to_thread(page.fresh)
        return _bytes(await asyncio.to_thread(snapshot.changes, version, wanted if version else []))

    async def events(self, request: Request) -> Response:
        page = self.page_of(request)
        return StreamingResponse(self._stream(page), media_type="text/event-stream")

    async def _stream(self, page: Page) -> AsyncIterator[str]:
        sent, quiet = 0, 0.0
        yield "retry: 2000\n\n"
        while not self.ends:
            try:
                version = (await asyncio.to_thread(page.fresh)).version
            except (RunError, OSError, KeyError) as error:  # its folder is being moved or removed
                yield _event("problem", {"why": str(error)})
                await asyncio.sleep(PAUSE_AFTER_A_PROBLEM)
                continue
            if version != sent:
                sent, quiet = version, 0.0
                yield _event("changed", {"version": version, "server": self.server})
            await asyncio.sleep(POLL)
            quiet += POLL
            if quiet >= HEARTBEAT:
                quiet = 0.0
                yield ": still here\n\n"


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _bytes(packed: bytes) -> Response:
    return Response(packed, media_type="application/octet-stream")


async def _not_here(_request: Request, error: Exception) -> Response:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return PlainTextResponse(f"{text}\n", status_code=404)


def application(folders: Sequence[str | Path], access: Access) -> tuple[Any, Pages]:
    """The ASGI application, and its pages."""
    pages = Pages(Shelf(folders))
    routes = [
        Route("/", pages.html), Route("/data", pages.data), Route("/changes", pages.changes),
        Route("/events", pages.events),
    ]  # fmt: skip
    handlers: Any = {KeyError: _not_here, RunError: _not_here, OSError: _not_here}
    return Guarded(Starlette(routes=routes, exception_handlers=handlers), access), pages


def listen(host: str, port: int | None) -> socket.socket:
    """A socket at this port; without one at the usual port, or at any if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for each in [port] if port is not None else [PORT, 0]:
        try:
            return socket.create_server((host, each), family=family)
        except OSError as error:
            if port is not None or each == 0:
                raise OSError(f"{host}:{each} cannot be listened at ({error.strerror})") from error
    raise AssertionError


def address(listening: socket.socket, access: Access) -> str:
    """What to open in a browser."""
    host, port = access.host, listening.getsockname()[1]
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(
        host, f"[{host}]" if ":" in host else host
    )
    return f"http://{shown}:{port}/" + (f"?token={access.token}" if access.token else "")


class Server(uvicorn.Server):
    """Ends at once: open streams are told to."""

    def __init__(self, app: Any, pages: Pages) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_level="error", access_log=False, ws="none", lifespan="off", http="h11",
                timeout_graceful_shutdown=2, server_header=False,
            )
        )  # fmt: skip
        self._pages = pages

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pages.ends = True
        await super().shutdown(sockets)
