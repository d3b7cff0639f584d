"""What was compiled from other sources than these is left alone, and types stay the same when a module comes again."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from learnscope import native
from native_builds import builds, needed


@needed
def test_a_build_of_other_sources_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(build.SOURCES == native.SOURCES for build in builds())
    monkeypatch.setattr(native, "SOURCES", native.SOURCES + 1)
    assert native._loaded() is None


@needed
@pytest.mark.parametrize("lacks", [False, True])
def test_of_several_builds_the_stale_one_alone_is_ignored(lacks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    widest = builds()[-1]
    if lacks:  # as before there were such numbers
        monkeypatch.delattr(widest, "SOURCES")
    else:
        monkeypatch.setattr(widest, "SOURCES", 0)
    assert native._loaded() is (builds()[0] if len(builds()) > 1 else None)


@needed
def test_without_kernels_nothing_of_a_stale_build_is_used() -> None:
    code = """if True:
        import importlib, sys, types
        sys.modules["learnscope.native._kernels"] = types.ModuleType("old")
        from learnscope import native
        import torch, learnscope as ls
        assert native.kernels is None
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ls.watch(model, optimizer) as w:
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(torch.ones(1, 2)).sum()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
        assert w.steps == 3
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@needed
def test_types_are_the_same_when_a_module_is_imported_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for build in builds():
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, build.__name__)
            again: Any = importlib.import_module(build.__name__)
            assert again is not build
            assert (again.Leaf, again.Course) == (build.Leaf, build.Course)
        monkeypatch.setattr(native, build.__name__.rpartition(".")[2], build)
