"""Why something could not be loaded from the Hugging Face hub, and what to do about it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from learnscope.sources.errors import first_line

PATIENCE = 3.0
"""Seconds to wait for the hub; its own packages try for most of a minute."""
_unreachable = False
_NO_HUB = "the hub cannot be reached: connect to the network, or name a local path"


def look_only_here_if_unreachable(names: Iterable[str | None]) -> None:
    """If one of `names` is no local path and the hub does not answer, use only what was downloaded before.

    Has an effect only before the hub's packages are imported; after that, they notice by themselves, slowly.
    """
    global _unreachable  # so that hub_reason can tell this from a variable that the user set
    remote = any(name is not None and not Path(name).exists() for name in names)
    if not remote or "HF_HUB_OFFLINE" in os.environ or any(key.lower() == "https_proxy" for key in os.environ):
        return
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((host.hostname, host.port or 443), timeout=PATIENCE).close()
    except OSError:
        _unreachable = True
        os.environ["HF_HUB_OFFLINE"] = "1"


def hub_reason(error: BaseException) -> str:
    """The cause among those chained to `error`, and the cure."""
    names: set[str] = set()
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 10:
        names |= {kind.__name__ for kind in type(cause).__mro__}
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    if _unreachable:
        return _NO_HUB
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return (
            "the hub is not asked because HF_HUB_OFFLINE is set: unset it, or name a local path "
            "(what was downloaded before is found by its name)"
        )
    if "GatedRepoError" in names:
        return "the hub does not give it without permission: ask for access on its page and log in with `hf auth login`"
    if names & {"RepositoryNotFoundError", "DatasetNotFoundError", "RevisionNotFoundError"}:
        return "the hub does not know it (or it is private): check the spelling, or log in with `hf auth login`"
    offline = {"ConnectionError", "ConnectError", "OfflineModeIsEnabled", "Timeout", "TimeoutException", "ProxyError"}
    words = ("couldn't connect", "could not connect", "can't reach", "couldn't reach", "connection", "offline")
    if names & offline or any(word in text.lower() for text in texts for word in words):
        return _NO_HUB
    return f"the hub gave an error: {first_line(error)}"
