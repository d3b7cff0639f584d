"""Who may ask: the machine itself; others with a token; no page of another site; nothing but reading."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
COOKIE = "learnscope"
_HEADERS = [
    (b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY"), (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]  # fmt: skip


@dataclass(frozen=True)
class Access:
    """What a request must be. `host` is the address that the server listens at."""

    host: str
    token: str | None = None
    names: frozenset[str] = frozenset()
    """Further names of this machine."""

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.token:
            raise ValueError(f"host {self.host}: other machines can reach it, so a token is needed")

    def refusal(self, method: str, headers: dict[str, str], query: str) -> tuple[int, str] | None:
        """Why a request is refused, with the status; None if it is not."""
        if method not in ("GET", "HEAD"):
            return 405, "this server only reads"
        if not self.is_known(host_name(headers.get("host", ""))):
            return 403, "this name is not one of this server: open it by the address that it printed"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return 403, "a page of another site may not ask"
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return 403, "a page of another site may not ask"
        if self.token is not None and not any(same(self.token, each) for each in tokens_in(headers, query)):
            return 401, "a token is needed: open the address that the server printed"
        return None

    def is_known(self, name: str) -> bool:
        """Whether a request for this host is meant for us. A name that somebody else's DNS points here is not; where
        any address is listened at, one written in numbers is, as no DNS can do that."""
        if name in LOOPBACK or name in self.names or name == self.host:
            return True
        if self.host not in ("0.0.0.0", "::"):
            return False
        return name == socket.gethostname().lower() or _is_address(name)


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return host in LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def host_name(host: str) -> str:
    """The name in a `Host` header, without its port.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("a@b")
    ('localhost', '::1', '')
    """
    try:
        parts = urlsplit(f"//{host}")
        return "" if parts.username is not None or parts.path else (parts.hostname or "")
    except ValueError:
        return ""


def same(token: str, given: str) -> bool:
    return hmac.compare_digest(token.encode(), given.encode())


def tokens_in(headers: dict[str, str], query: str) -> Iterable[str]:
    """The tokens that a request gives: in its address, as a cookie, or as a header."""
    yield from (value for key, value in parse_qsl(query) if key == "token")
    yield from (each.value for each in [SimpleCookie(headers.get("cookie", "")).get(COOKIE)] if each is not None)
    if headers.get("authorization", "").startswith("Bearer "):
        yield headers["authorization"].removeprefix("Bearer ")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guarded:
    """An ASGI application behind an `Access`."""

    def __init__(self, app: Any, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        query = scope["query_string"].decode("latin-1")
        refused = self.access.refusal(scope["method"], headers, query)
        if refused is not None:
            await _answer(send, *refused)
        elif scope["method"] == "GET" and any(key == "token" for key, _ in parse_qsl(query)):
            await self._keep_token(scope, query, send)
        else:
            await self.app(scope, receive, _with_headers(send))

    async def _keep_token(self, scope: Any, query: str, send: Any) -> None:
        """The token moves from the address, which is shown and copied, into a cookie."""
        rest = urlencode([(key, value) for key, value in parse_qsl(query) if key != "token"])
        place = f"/{scope['path'].lstrip('/')}" + (f"?{rest}" if rest else "")  # two slashes would be another host
        more = [(b"location", place.encode())]
        if self.access.token is not None:
            cookie = f"{COOKIE}={self.access.token}; HttpOnly; SameSite=Strict; Path=/"
            more.append((b"set-cookie", cookie.encode()))
        await _answer(send, 303, "", more)


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *_HEADERS]}
        await send(message)

    return sending


async def _answer(send: Any, status: int, text: str, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})
