"""Adapters that were trained elsewhere, runs that are taken up again, and several adapters in findings and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.report.adapters.panels import gradient_figure, rank_figure
from learnscope.store.backend import FolderBackend
from learnscope.store.reader import RunReader
from model.adapters.adapted import adapted, scopes, update
from seeds.tiny import language_model, token_batches


def norms(run: ls.Run) -> dict[str, float]:
    frame = run.frame("AdapterSpectrum", "frobenius_norm")
    return dict(zip(frame["scope"], frame["value"], strict=True))


def test_an_adapter_loaded_for_inference_is_not_taken_for_a_beginning(tmp_path: Path) -> None:
    one = adapted("pissa")
    one.train(3)
    one.model.save_pretrained(tmp_path)
    torch.manual_seed(4)
    loaded = peft.PeftModel.from_pretrained(language_model(), str(tmp_path))
    with ls.watch(loaded, probes=[ls.AdapterSpectrum(at="once")], strict=True) as w:
        pass
    frame = w.run.frame("AdapterSpectrum", "frobenius_norm")
    assert frame["value"].isna().all()  # 0 would say that it has learned nothing
    assert frame["status"].str.contains("began with were not kept").all()


def test_a_lora_that_was_loaded_has_the_update_that_was_saved(tmp_path: Path) -> None:
    one = adapted("lora")
    one.train(3)
    one.model.save_pretrained(tmp_path)
    torch.manual_seed(4)
    found = norms(
        ls.audit(peft.PeftModel.from_pretrained(language_model(), str(tmp_path)), probes=[ls.AdapterSpectrum()])
    )
    for scope in scopes(one):
        assert found[scope] == pytest.approx(np.linalg.norm(update(one, scope).numpy()), rel=1e-9)


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    held = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    held += [p._backward_hooks or {} for p in model.parameters()]
    held += [getattr(p, "_post_accumulate_grad_hooks", None) or {} for p in model.parameters()]
    return sum(map(len, held))


def test_a_damaged_state_refuses_the_session_and_leaves_nothing_behind(tmp_path: Path) -> None:
    one = adapted("lora")
    before = hooks(one.model, one.optimizer)
    with ls.watch(one.model, one.optimizer, run=tmp_path / "run", probes=[ls.AdapterSpectrum(every=1)]) as w:
        one.train(2)
        state = w.save_state()
    assert state is not None
    whole = state.read_bytes()
    state.write_bytes(whole[:50])
    again: dict[str, Any] = {"run": tmp_path / "run", "probes": [ls.AdapterSpectrum(every=1)], "resume": True}
    for _ in range(2):  # the folder is not locked either
        with pytest.raises(ls.RunError, match=r"state of step 2, .* is damaged .*: remove it to go on without"):
            ls.watch(one.model, one.optimizer, **again)
        assert hooks(one.model, one.optimizer) == before
    assert ls.open_run(tmp_path / "run").manifest["status"].startswith("interrupted by RunError")
    state.write_bytes(whole)
    with ls.watch(one.model, one.optimizer, **again) as w:
        one.train(1)
    assert (w.steps, w.run.manifest["status"]) == (3, "finished")


def test_looks_at_the_end_are_one_for_each_session(tmp_path: Path) -> None:
    one = adapted("lora")
    probe = ls.AdapterTruncation(examples=2)
    options: dict[str, Any] = {"run": tmp_path / "run", "probes": [probe], "holdout": token_batches(1), "strict": True}
    with ls.watch(one.model, one.optimizer, **options) as w:
        one.train(2)
    w.close()
    with pytest.raises(KeyboardInterrupt), ls.watch(one.model, one.optimizer, **options, resume=True):
        one.train(1)
        raise KeyboardInterrupt
    with ls.watch(one.model, one.optimizer, **options, resume=True, step=3) as w:
        one.train(1)
    records = [(record.step, record.phase, record.attempt) for record in w.run.records("AdapterTruncation")]
    assert records == [(2, "end", 0), (4, "end", 2)]


def test_intruders_of_the_first_of_two_adapters_are_found() -> None:
    torch.manual_seed(0)
    config: dict[str, Any] = {"r": 2, "target_modules": ["0"]}
    model: Any = peft.get_peft_model(
        nn.Sequential(nn.Linear(24, 24)), peft.LoraConfig(**config, init_lora_weights=False)
    )
    model.add_adapter("idle", peft.LoraConfig(**config))
    layer = model.base_model.model[0]
    layer.lora_B["default"].weight.data.mul_(50)
    run = ls.audit(model, probes=[ls.AdapterSpectrum(intruders=True)])
    weight = layer.base_layer.weight.detach().double().numpy()
    left, right = (getattr(layer, f"lora_{part}")["default"].weight.detach().double().numpy() for part in "BA")
    tuned = weight + layer.scaling["default"] * left @ right
    base, leading = np.linalg.svd(weight)[0], np.linalg.svd(tuned)[0][:, :10]
    expected = int((np.abs(base.T @ leading).max(0) < 0.5).sum())
    found = [one for one in run.findings() if one.kind == "intruder_dimensions"]
    assert [one.evidence.value for one in found] == [expected]
    assert expected > 0
    assert found[0].title.endswith("in adapter default")


def test_report_panels_tell_modules_of_one_name_apart_and_count_layers(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    base: Any = GPT2LMHeadModel
    sizes = GPT2Config(vocab_size=19, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    targets: dict[str, Any] = {"target_modules": ["c_proj", "c_attn"], "fan_in_fan_out": True}
    model: Any = peft.get_peft_model(base(sizes), peft.LoraConfig(r=2, **targets))
    model.add_adapter("b", peft.LoraConfig(r=2, **targets))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    probes = [ls.AdapterSpectrum(every=1), ls.AdapterGradients(every=1)]
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=probes, strict=True):
        for batch in token_batches(2):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    reader = RunReader(FolderBackend.existing(tmp_path / "run"))
    ranks = rank_figure(reader)
    assert ranks is not None
    titles = [axes.get_title(loc="left") for axes in ranks.axes if axes.get_title(loc="left")]
    assert titles == ["c_attn", "attn.c_proj", "mlp.c_proj"]
    assert "6 modules in 2 layers of transformer.h" in ranks.texts[1].get_text()
    gradients = gradient_figure(reader)
    assert gradients is not None
    assert gradients.texts[0].get_text().endswith("(default, the first of 2)")
    assert gradients.texts[1].get_text().startswith("2 layers of transformer.h, 2 measurements")


def test_a_share_of_all_adapters_is_not_said_of_one() -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["0", "1"], init_lora_weights=False)
    model: Any = peft.get_peft_model(nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 5)), config)
    model.add_adapter("b", config)
    model.base_model.set_adapter(["default", "b"])
    for layer in model.base_model.model:
        for name in ("default", "b"):
            layer.lora_B[name].weight.data[:, 1:] = 0  # of its four directions every adapter uses one
    data = [(torch.randn(16, 12), torch.randint(5, (16,)))]
    run = ls.audit(model, data, probes=[ls.AdapterTruncation(), ls.AdapterSpectrum()], strict=True)
    titles = [one.title for one in run.findings() if one.kind == "adapter_rank_large"]
    told = "25 % of the adapters' parameters would suffice, all adapters together, with lower ranks in adapter"
    assert titles == [f"{told} default", f"{told} b"]


def test_modules_without_a_number_are_not_said_to_have_moved() -> None:
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(
        nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))), peft.LoraConfig(r=2, target_modules=["0", "1", "2", "3"])
    )
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    layers = list(model.base_model.model)
    with ls.watch(model, optimizer, probes=[ls.AdapterSpectrum(every=1)], strict=True) as w:
        for _ in range(4):
            optimizer.zero_grad()
            for layer in layers[:2]:  # the loss does not depend on the others
                layer(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            layers[3].lora_A["default"].weight.data[0, 0] = torch.nan
    (finding,) = [one for one in w.run.findings() if one.kind == "dead_adapters"]
    assert finding.scopes == ["2"]
    assert "2 other modules moved" in finding.detail
