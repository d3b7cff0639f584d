"""Applying patches: only to the right base, all of it or nothing, and from an undamaged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import learnscope as ls
from model.updates.test_patch import exact, gpt2, raw, trained_gpt2


def make(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 5))


def trained(model: nn.Module) -> nn.Module:
    """One step of SGD with a few gradients that are not zero, and new statistics."""
    new = make()
    new.load_state_dict(model.state_dict())
    new(torch.randn(8, 30))
    with torch.no_grad():
        new[0].weight.view(-1)[::50] += 1
        new[2].weight.view(-1)[:3] = float("nan")
    return new


@pytest.fixture
def patch(tmp_path: Path) -> Path:
    path = tmp_path / "p.safetensors"
    torch.manual_seed(5)
    info = ls.export_patch(make(), trained(make()), path)
    assert {change.how for change in info.table} == {"same", "sparse", "dense"}
    return path


def wanted() -> dict[str, Tensor]:
    torch.manual_seed(5)
    return dict(trained(make()).state_dict())


def bytes_of(model: nn.Module) -> dict[str, bytes]:
    return {name: raw(tensor) for name, tensor in model.state_dict().items()}


def refused(target: nn.Module, patch: Path, match: str, **options: Any) -> None:
    before = bytes_of(target)
    with pytest.raises(ls.PatchError, match=match):
        ls.apply_patch(target, patch, **options)
    assert bytes_of(target) == before


def test_in_place_everything_keeps_its_identity(patch: Path) -> None:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    optimizer.zero_grad()
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()  # lr 0: the weights stay, the moments come to be
    model.load_state_dict(make().state_dict())  # the statistics of batch norm had moved on
    pending = (model[0].weight * model[0].weight).sum()
    places = [(id(p), p.data_ptr(), p._version) for p in model.parameters()]
    moments = {p: state["exp_avg"].clone() for p, state in optimizer.state.items()}
    assert ls.apply_patch(model, patch) is model
    assert exact(model.state_dict(), wanted())
    assert places == [(id(p), p.data_ptr(), p._version) for p in model.parameters()]
    assert all(torch.equal(optimizer.state[p]["exp_avg"], moments[p]) for p in model.parameters())
    pending.backward()  # a graph made before is not broken


@pytest.mark.parametrize("wrap", [lambda m: torch.compile(m, backend="eager"), nn.DataParallel], ids=["compile", "dp"])
def test_wrapped_modules(wrap: Any, patch: Path, tmp_path: Path) -> None:
    model = make()
    ls.apply_patch(wrap(model), patch)
    assert exact(model.state_dict(), wanted())
    again = ls.export_patch(wrap(make()), wrap(model), tmp_path / "q.safetensors")
    assert [c.name for c in again.table] == list(model.state_dict())


def test_strides_of_the_target_do_not_matter(tmp_path: Path) -> None:
    old, new = nn.Conv2d(8, 16, 3), nn.Conv2d(8, 16, 3)
    new.load_state_dict(old.state_dict())
    with torch.no_grad():
        new.weight.view(-1)[[5, 700, 701]] += 1
        new.bias += 1
    info = ls.export_patch(old, new, tmp_path / "p.safetensors")
    assert [change.how for change in info.table] == ["sparse", "dense"]
    target = old.to(memory_format=torch.channels_last)
    assert not target.weight.is_contiguous()
    assert exact(ls.apply_patch(target.state_dict(), info.path), new.state_dict())
    ls.apply_patch(target, info.path)
    assert exact(target.state_dict(), new.state_dict())
    assert target.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("where", ["2.bias", "0.weight", "1.num_batches_tracked"])
def test_a_wrong_base_is_refused_by_name_and_left_alone(where: str, patch: Path, tmp_path: Path) -> None:
    model = make()
    with torch.no_grad():
        model.state_dict()[where].view(-1)[-1] += 1
    pattern = rf"not the base of the patch p\.safetensors: '{where}' has other values \(1 of 9.*in the order.*Nothing"
    refused(model, patch, pattern)
    with pytest.raises(ls.PatchError, match=pattern):
        ls.apply_patch(model.state_dict(), patch)
    save_file(model.state_dict(), tmp_path / "base.safetensors")
    with pytest.raises(ls.PatchError, match=pattern):
        ls.apply_patch(tmp_path / "base.safetensors", patch, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
    ls.apply_patch(model, patch, verify=False)
    assert exact({**model.state_dict(), where: wanted()[where]}, wanted())


def test_a_second_time_is_said_to_be_one(patch: Path) -> None:
    model = make()
    ls.apply_patch(model, patch)
    refused(model, patch, "holds what the patch makes already")


def test_chains_are_known_by_their_fingerprints(tmp_path: Path) -> None:
    states = [{"w": torch.arange(400.0) + (torch.arange(400) < n)} for n in range(3)]
    infos = [ls.export_patch(states[i], states[i + 1], tmp_path / f"{i}.safetensors") for i in range(2)]
    assert infos[0].result == infos[1].base != infos[0].base
    with pytest.raises(ls.PatchError, match="'w' has other values"):
        ls.apply_patch(states[0], infos[1].path)
    assert exact(ls.apply_patch(ls.apply_patch(states[0], infos[0].path), infos[1].path), states[2])


def test_without_fingerprints(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    torch.manual_seed(5)
    info = ls.export_patch(make(), trained(make()), path, verify=False)
    assert (info.base, info.result) == (None, None)
    model = make()
    refused(model, path, "made with verify=False")
    ls.apply_patch(model, path, verify=False)
    assert exact(model.state_dict(), wanted())


def test_another_structure_is_refused(patch: Path) -> None:
    refused(make()[:2], patch, r"it lacks '2\.weight'")
    refused(nn.Sequential(*make(), nn.Linear(2, 2)), patch, r"it has '3\.weight', which the patch's base has not")
    refused(make().double(), patch, r"'0\.weight' is float64 \[40, 30\], and float32 \[40, 30\] in the patch's base")


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path, broken = tmp_path / "p.safetensors", tmp_path / "broken.safetensors"
    old = {"a": torch.zeros(300), "b": torch.zeros(3, dtype=torch.bool)}
    ls.export_patch(old, {"a": torch.arange(300) // 290 * 1.5, "b": ~old["b"]}, path)
    whole = path.read_bytes()
    for position in range(len(whole)):
        broken.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ls.PatchError):
            ls.apply_patch(old, broken)
    for length in range(0, len(whole), 7):
        broken.write_bytes(whole[:length])
        with pytest.raises(ls.PatchError, match=r"damaged or not a safetensors file.*send it again"):
            ls.apply_patch(old, broken)


def rewritten(path: Path, change: Any) -> None:
    """The patch with other contents, as a program that knows the format could write them."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["learnscope"])
    tensors = load_file(path)
    change(header, tensors)
    save_file(tensors, path, metadata={"learnscope": json.dumps(header)})


@pytest.mark.parametrize("verify", [True, False])
def test_positions_outside_are_never_written(verify: bool, patch: Path) -> None:
    def far(header: Any, tensors: dict[str, Tensor]) -> None:
        tensors["gaps/2.weight"] = torch.full_like(tensors["gaps/2.weight"], 255)

    rewritten(patch, far)
    refused(make(), patch, "is damaged" if verify else r"2\.weight has no entry 767", verify=verify)


@pytest.mark.parametrize(
    "key", ["values/0.weight", "gaps/0.weight", "gaps/2.weight", "values/2.weight", "whole/1.running_var"]
)
@pytest.mark.parametrize("how", ["gone", "shorter", "other type"])
def test_parts_that_do_not_fit_are_never_written(key: str, how: str, patch: Path) -> None:
    def spoil(header: Any, tensors: dict[str, Tensor]) -> None:
        part = tensors.pop(key)
        if how != "gone":
            tensors[key] = part[:-1].clone() if how == "shorter" else part.to(torch.float64)

    rewritten(patch, spoil)
    refused(make(), patch, "is damaged", verify=False)


def test_headers_of_others(patch: Path, tmp_path: Path) -> None:
    rewritten(patch, lambda header, _: header.update(format=2))
    refused(make(), patch, "has patch format 2; this learnscope reads up to 1. Upgrade")
    rewritten(patch, lambda header, _: (header.update(format=1), header.pop("tensors")))
    refused(make(), patch, "its header lacks 'tensors'")
    rewritten(patch, lambda header, _: header.update(tensors=[{"names": ["x"], "shape": [], "more": 1}]))
    refused(make(), patch, "is damaged")
    save_file({"a": torch.zeros(2)}, patch, metadata={"learnscope": "{"})
    refused(make(), patch, "its header is no JSON")
    save_file({"a": torch.zeros(2)}, patch)
    refused(make(), patch, "a safetensors file but no patch")
    refused(make(), tmp_path / "nowhere", "there is no patch file")


@pytest.mark.parametrize("fault", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_error_in_the_middle_undoes_what_was_written(
    fault: BaseException, after: int, patch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import learnscope.model.updates.patch_apply as home

    put, calls = home._put, []

    def failing(*args: Any) -> None:
        calls.append(args)
        put(*args)
        if len(calls) == after:
            raise fault

    monkeypatch.setattr(home, "_put", failing)
    model, before = make(), bytes_of(make())
    with pytest.raises(type(fault)):
        ls.apply_patch(model, patch)
    assert len(calls) == 2 * after
    assert bytes_of(model) == before


def test_added_removed_and_replaced(tmp_path: Path) -> None:
    shared = torch.randn(7)
    old = {"same": torch.ones(3), "gone": torch.ones(2), "shape": torch.ones(4), "dtype": torch.ones(4)}
    new = {
        "same": torch.ones(3), "shape": torch.ones(5), "dtype": torch.ones(4).bfloat16(),
        "fresh": torch.randn(2, 2), "empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "x": shared, "y": shared,
    }  # fmt: skip
    info = ls.export_patch(old, new, tmp_path / "p.safetensors")
    assert {c.name: c.how for c in info.table} == {
        "same": "same", "gone": "removed", "shape": "replaced", "dtype": "replaced",
        "fresh": "added", "empty": "added", "scalar": "added", "x": "added",
    }  # fmt: skip
    found = ls.apply_patch(old, info.path)
    assert exact(found, new)
    assert found["x"] is found["y"]
    save_file(old, tmp_path / "old.safetensors", metadata={"format": "pt", "note": "kept"})
    out = ls.apply_patch(tmp_path / "old.safetensors", info.path, tmp_path / "out.safetensors")
    assert exact(load_file(out), {name: tensor for name, tensor in new.items() if name != "y"})
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "note": "kept", "y": "x"}
    with pytest.raises(ls.PatchError, match="it has 'fresh' already, which the patch adds"):
        ls.apply_patch({**old, "fresh": torch.zeros(1)}, info.path)


def test_empty_tensors_are_not_taken_for_tied(tmp_path: Path) -> None:
    one, two = {"a": torch.zeros(0)}, {"a": torch.zeros(0), "b": torch.zeros(0)}
    for old, new in ((one, two), (two, one)):
        ls.export_patch(old, new, tmp_path / "p.safetensors")
        assert exact(ls.apply_patch(old, tmp_path / "p.safetensors"), new)


@pytest.mark.parametrize("how", ["added", "removed", "replaced"])
def test_a_module_cannot_change_its_structure(how: str, tmp_path: Path) -> None:
    small = dict(nn.Linear(3, 2, bias=False).state_dict())
    larger = {**small, "bias": torch.zeros(2)}
    new = {"added": larger, "removed": small, "replaced": {**larger, "bias": torch.zeros(3)}}[how]
    target = nn.Linear(3, 2, bias=how != "added")
    info = ls.export_patch(target, {**new, "weight": target.weight.detach() + 1}, tmp_path / "p.safetensors")
    refused(target, info.path, rf"'bias' is {how} by the patch, which cannot be done to a module in place")


def test_copies_of_tied_weights_fit_a_tied_model_and_untied_ones_do_not(tmp_path: Path) -> None:
    old, new = gpt2(), trained_gpt2()
    apart = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in (old, new)]
    path = tmp_path / "p.safetensors"
    ls.export_patch(*apart, path)
    ls.apply_patch(old, path)
    assert exact(old.state_dict(), new.state_dict())
    for change in ({"lm_head.weight": apart[1]["lm_head.weight"] + 1}, {"lm_head.weight": apart[0]["lm_head.weight"]}):
        ls.export_patch(gpt2(), {**apart[1], **change}, path)
        refused(gpt2(), path, "share memory in the module but not in the patch")
        assert exact(ls.apply_patch(gpt2().state_dict(), path), {**apart[1], **change})


class Overlapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(100.0)
        self.register_buffer("whole", whole)
        self.register_buffer("first", whole[1:10])
        self.register_buffer("last", whole[90:])


def test_overlapping_memory_is_refused_unless_it_stays(tmp_path: Path) -> None:
    for changed in ("whole", "last"):
        state = {name: tensor.clone() for name, tensor in Overlapping().state_dict().items()}
        state[changed] = state[changed] + 1
        info = ls.export_patch(Overlapping(), state, tmp_path / "p.safetensors")
        refused(Overlapping(), info.path, "share memory in the module but not in the patch")
    info = ls.export_patch(Overlapping(), Overlapping(), tmp_path / "p.safetensors")
    ls.apply_patch(Overlapping(), info.path)


def test_a_state_dictionary_of_copies_is_refused(patch: Path) -> None:
    model = make()
    model.register_state_dict_post_hook(lambda module, state, *_: state.update({"0.bias": state["0.bias"].clone()}))
    refused(model, patch, r"'0\.bias' of the state dictionary is not the module's own memory")


def test_where_the_result_goes(patch: Path, tmp_path: Path) -> None:
    torch.save(make().state_dict(), tmp_path / "base.pt")
    with pytest.raises(ls.PatchError, match="say where the result goes"):
        ls.apply_patch(tmp_path / "base.pt", patch)  # type: ignore[call-overload]
    with pytest.raises(ls.PatchError, match="give it with a file, and only then"):
        ls.apply_patch(make(), patch, tmp_path / "out.safetensors")  # type: ignore[call-overload]
    with pytest.raises(ls.PatchError, match=r"name it .*out\.safetensors"):
        ls.apply_patch(tmp_path / "base.pt", patch, tmp_path / "out.pt")
    with pytest.raises(ls.PatchError, match="would overwrite the patch"):
        ls.apply_patch(tmp_path / "base.pt", patch, patch)
    save_file(make().state_dict(), tmp_path / "base.safetensors")
    base = tmp_path / "base.safetensors"
    assert ls.apply_patch(base, patch, base) == base, "in the base's own place, if that is asked for"
    assert exact(load_file(base), wanted())
