"""Why something could not be had from the hub."""

from __future__ import annotations

import pytest

from learnscope.sources.hub import hub_reason


def test_reasons_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    connect = OSError("We couldn't connect to 'https://huggingface.co' to load the files")
    assert hub_reason(connect) == "the hub cannot be reached: connect to the network, or name a local path"

    class RepositoryNotFoundError(OSError):
        pass

    wrapped = OSError("x/y is not a local folder and is not a valid model identifier")
    wrapped.__cause__ = RepositoryNotFoundError("404")
    assert hub_reason(wrapped).startswith("the hub does not know it")
    assert hub_reason(ValueError("odd\nmore")) == "the hub gave an error: odd"
