"""The probe against activations captured by hand, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from probes.reference import at_scope, failures, rows, tiny_gpt2, tokens, values

PROBE = "Activations"


def audited(model: nn.Module, batches: Any, **options: Any) -> ls.Run:
    return ls.audit(model, batches, probes=[ls.Activations(**options)], strict=True)


def mlp(*biases: float) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, len(biases)), nn.ReLU(), nn.Linear(len(biases), 6), nn.Tanh(), nn.Linear(6, 2))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor(biases))
    return model


def test_planted_dead_and_saturated_units() -> None:
    model = mlp(-1e3, -1e3, 0.0, 10.0)
    with torch.no_grad():
        model[2].weight.mul_(0.01)
        model[2].bias.copy_(torch.tensor([40.0, -40.0, 0.0, 0.0, 0.0, 0.0]))
    x = torch.randn(90, 4)
    run = audited(model, [(x[:50], torch.zeros(50).long()), (x[50:], torch.zeros(40).long())])
    assert at_scope(run, PROBE, "dead_share", "site") == {"1": 0.5, "3": 0.0}
    assert at_scope(run, PROBE, "saturated_share", "site") == {"1": 0.5, "3": 2 / 6}
    assert at_scope(run, PROBE, "dead_share", "layer") == {"1": 0.5, "3": 0.0}
    assert values(run, PROBE, "dead_share") == [0.2]
    assert values(run, PROBE, "saturated_share") == [0.4]
    assert values(run, PROBE, "units") == [10]
    assert values(run, PROBE, "sites") == [2]
    assert at_scope(run, PROBE, "units", "site", function="Tanh") == {"3": 6}
    with torch.no_grad():
        hidden = model[:2](x).double().numpy().ravel()
    assert at_scope(run, PROBE, "rms", "layer")["1"] == pytest.approx(np.sqrt((hidden**2).mean()), rel=1e-6)
    assert at_scope(run, PROBE, "kurtosis", "layer")["1"] == pytest.approx(stats.kurtosis(hidden), rel=1e-5)
    assert set(at_scope(run, PROBE, "output_rms", "layer")) == {"0", "2", "4"}
    assert next(run.records(PROBE)).notes["examples"] == 90


def captured(model: nn.Module, names: list[str], batch: dict[str, Tensor]) -> dict[str, tuple[Any, Any]]:
    """Inputs and outputs of modules at the positions that the mask keeps, [positions, units] in float64."""
    found: dict[str, tuple[Any, Any]] = {}
    mask = batch["attention_mask"].bool()

    def keep(name: str) -> Any:
        def hook(_module: nn.Module, args: Any, out: Any) -> None:
            pair = (args[0], out[0] if isinstance(out, tuple) else out)
            found[name] = tuple(t.detach().double()[mask].reshape(-1, t.shape[-1]).numpy() for t in pair)

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    model.eval()
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    return found


def padded(batch: int = 5, length: int = 12) -> dict[str, Tensor]:
    ids, mask = tokens(batch, length), torch.ones(batch, length, dtype=torch.int64)
    mask[0, 7:], mask[1, 2:], mask[3, :4] = 0, 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def silu_slope(x: Any) -> Any:
    return special.expit(x) * (1 + x * (1 - special.expit(x)))


def gelu_slope(x: Any) -> Any:
    return special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def check(run: ls.Run, name: str, x: Any, y: Any, derivative: Any) -> None:
    assert at_scope(run, PROBE, "units", "site")[name] == y.shape[1]
    assert at_scope(run, PROBE, "rms", "site")[name] == pytest.approx(np.sqrt((y**2).mean()), rel=1e-5)
    assert at_scope(run, PROBE, "kurtosis", "site")[name] == pytest.approx(stats.kurtosis(y.ravel()), rel=1e-4)
    assert at_scope(run, PROBE, "dead_share", "site")[name] == pytest.approx((y == 0).all(0).mean(), abs=1e-12)
    steep = np.abs(derivative(np.linspace(-20, 20, 400_001))).max()
    flat = (np.abs(derivative(x)) < 0.01 * steep).mean(0) > 0.95
    assert at_scope(run, PROBE, "saturated_share", "site")[name] == pytest.approx(flat.mean(), abs=1e-12)


def test_gpt2_with_padding() -> None:
    model = tiny_gpt2(activation_function="gelu")
    with torch.no_grad():
        for i, block in enumerate(model.transformer.h):
            block.mlp.c_fc.weight.mul_(30)
            block.mlp.c_fc.bias[: 5 + i] = -1e3
            block.mlp.c_fc.bias[10:30] = -4.0
    batch = padded()
    run = audited(model, [batch])
    names = [f"transformer.h.{i}.mlp.act" for i in (0, 1)]
    blocks = [f"transformer.h.{i}" for i in (0, 1)]
    found = captured(model, names + blocks, batch)
    for i, name in enumerate(names):
        check(run, name, *found[name], gelu_slope)
        assert at_scope(run, PROBE, "dead_share", "layer")[blocks[i]] == (5 + i) / 64
        out = found[blocks[i]][1]
        assert at_scope(run, PROBE, "output_rms", "layer")[blocks[i]] == pytest.approx(
            np.sqrt((out**2).mean()), rel=1e-5
        )
        assert at_scope(run, PROBE, "output_kurtosis", "layer")[blocks[i]] == pytest.approx(
            stats.kurtosis(out.ravel()), rel=1e-4
        )
    assert 0 < values(run, PROBE, "saturated_share")[0] < 1
    functions = run.frame(PROBE, "units", "site").function.unique().tolist()
    assert functions == [type(model.transformer.h[0].mlp.act).__name__]


def test_the_padding_of_a_batch_would_have_shown() -> None:
    """The positive control: the same without the mask gives other numbers."""
    model, batch = tiny_gpt2(), padded()
    masked = audited(model, [batch])
    open_ = audited(model, [{"input_ids": batch["input_ids"]}])
    layer = "transformer.h.0"
    assert at_scope(masked, PROBE, "rms", "layer")[layer] != at_scope(open_, PROBE, "rms", "layer")[layer]
    assert at_scope(masked, PROBE, "output_rms", "layer")[layer] != at_scope(open_, PROBE, "output_rms", "layer")[layer]


def test_llama_with_padding() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, num_hidden_layers=2, **sizes))
    with torch.no_grad():
        for block in model.model.layers:
            block.mlp.gate_proj.weight.mul_(60)
    batch = padded()
    run = audited(model, [batch])
    names = [f"model.layers.{i}.mlp.act_fn" for i in (0, 1)]
    for name, pair in captured(model, names, batch).items():
        check(run, name, *pair, silu_slope)
    assert set(at_scope(run, PROBE, "dead_share", "layer")) == {"model.layers.0", "model.layers.1"}


def test_bert_whose_pooler_is_as_wide_as_the_batch_is_long() -> None:
    """[B, H] of the pooler has the shape of the mask, but its units are no positions."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 2, "max_position_embeddings": 12}
    model = BertForSequenceClassification(BertConfig(vocab_size=40, num_hidden_layers=2, **sizes))
    batch = padded(5, 12)
    run = audited(model, [{**batch, "labels": torch.zeros(5, dtype=torch.int64)}])
    names = [f"bert.encoder.layer.{i}.intermediate.intermediate_act_fn" for i in (0, 1)]
    for name, pair in captured(model, names, batch).items():
        check(run, name, *pair, gelu_slope)
    with torch.no_grad():
        pooled = model.bert(**batch).pooler_output.double().numpy()
    pooler = "bert.pooler.activation"
    assert at_scope(run, PROBE, "units", "site")[pooler] == 12
    assert at_scope(run, PROBE, "rms", "site")[pooler] == pytest.approx(np.sqrt((pooled**2).mean()), rel=1e-6)


def test_encoder_and_decoder_have_padding_of_their_own() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 8, "d_ff": 12, "d_kv": 4, "num_heads": 2, "num_layers": 1, "vocab_size": 40}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    batch = padded(4, 9)
    labels = tokens(4, 9, seed=3)
    decoder_mask = torch.ones(4, 9, dtype=torch.int64)
    decoder_mask[2, 4:] = 0
    run = audited(model, [{**batch, "labels": labels, "decoder_attention_mask": decoder_mask}])
    seen: dict[str, Tensor] = {}
    for part in ("encoder", "decoder"):
        module = model.get_submodule(f"{part}.block.0.layer.{1 if part == 'encoder' else 2}.DenseReluDense.act")
        module.register_forward_hook(lambda _m, _a, out, part=part: seen.update({part: out.double()}))
    with torch.no_grad():
        model(**batch, decoder_input_ids=model._shift_right(labels), decoder_attention_mask=decoder_mask)
    rms = at_scope(run, PROBE, "rms", "layer")
    for part, mask in (("encoder", batch["attention_mask"]), ("decoder", decoder_mask)):
        expected = seen[part][mask.bool()].square().mean().sqrt()
        assert rms[f"{part}.block.0"] == pytest.approx(float(expected), rel=1e-5)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).mean((2, 3)))


def test_a_functional_net() -> None:
    model = Functional()
    with torch.no_grad():
        model.conv.bias.copy_(torch.tensor([-1e3, 1e3, 1e3, 1e3]))
    run = audited(model, [(torch.randn(10, 1, 6, 6), torch.zeros(10).long())])
    assert at_scope(run, PROBE, "dead_share", "site", function="relu") == {"(root):relu": 0.25}
    assert set(at_scope(run, PROBE, "output_rms", "layer")) == {"conv", "head"}


def test_a_half_precision_model() -> None:
    model = mlp(-1e3, 3.0, 3.0, 0.0).to(torch.bfloat16)
    x = torch.randn(30, 4).to(torch.bfloat16)
    run = audited(model, [(x, torch.zeros(30).long())])
    with torch.no_grad():
        hidden = model[:2](x).double().numpy().ravel()
    assert at_scope(run, PROBE, "dead_share", "site")["1"] == 0.25
    assert at_scope(run, PROBE, "kurtosis", "site")["1"] == pytest.approx(stats.kurtosis(hidden), rel=1e-9)


def test_a_model_without_activations_says_so() -> None:
    run = audited(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), [(torch.randn(8, 3), torch.zeros(8).long())])
    for name in ("dead_share", "saturated_share"):
        [row] = rows(run, PROBE, name).itertuples()
        assert np.isnan(row.value)
        assert "no activation was seen" in row.status
    assert values(run, PROBE, "units") == [0]
    assert len(rows(run, PROBE, "dead_share", "site")) == 0
    assert set(at_scope(run, PROBE, "output_rms", "layer")) == {"0", "1"}


def test_missing_numbers_carry_their_reason() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.dead, self.act = nn.Linear(2, 2), nn.Linear(4, 6), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.dead(x))

    model = Odd()
    nn.init.constant_(model.dead.bias, -1e3)
    status = audited(model, [(torch.randn(8, 4), torch.zeros(8).long())]).frame(PROBE)
    said = {(row.scope, row.name): row.status for row in status.itertuples() if isinstance(row.status, str)}
    assert "no spread" in said.pop(("act", "kurtosis"))
    assert {name for scope, name in said} == {"output_rms", "output_kurtosis", "output_nan", "output_inf"}
    assert {scope for scope, name in said} == {"idle"}
    assert len(set(said.values())) == 1
    few = audited(nn.Sequential(nn.Linear(4, 1), nn.Tanh()), [(torch.randn(3, 4), torch.zeros(3, 1))]).frame(PROBE)
    assert few[(few.name == "kurtosis") & (few.kind == "site")].status.tolist() == ["3 values: a kurtosis needs 4"]


def test_values_that_are_not_finite_are_counted() -> None:
    model = mlp(0.0, 0.0, 0.0, 0.0)
    x = torch.randn(8, 4)
    x[0, 0] = torch.nan
    run = audited(model, [(x, torch.zeros(8).long())])
    assert at_scope(run, PROBE, "nan", "site")["1"] == 4
    assert values(run, PROBE, "nan") == [10]
    [status] = rows(run, PROBE, "kurtosis", "layer").query("scope == '1'").status
    assert status == "nan"


def test_only_so_many_examples_are_run_and_sites_may_be_left_out() -> None:
    data = [(torch.randn(20, 4), torch.zeros(20).long()) for _ in range(4)]
    run = audited(mlp(0.0, 0.0, 0.0, 0.0), data, examples=30, per_site=False)
    assert next(run.records(PROBE)).notes["examples"] == 30
    assert len(rows(run, PROBE, "units", "site")) == 0
    with pytest.raises(ValueError, match="examples"):
        ls.Activations(examples=0)


@pytest.mark.parametrize("at", ["after_step", "epoch"])
def test_watching_a_compiled_model_with_dropout(at: Any) -> None:
    """In eval mode, under its own names, at either moment."""
    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.9), nn.Linear(8, 2))
    model = torch.compile(inner, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    data = [(torch.randn(16, 4), torch.zeros(16).long())]
    probe = ls.Activations(every=1, at=at)
    with ls.watch(model, optimizer, probes=[probe], holdout=data, strict=True) as w:
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(data[0][0]), data[0][1]).backward()
            optimizer.step()
            w.end_epoch()
    assert inner.training
    assert set(at_scope(w.run, PROBE, "dead_share", "site")) == {"1"}
    with torch.no_grad():
        expected = inner.eval()(data[0][0]).double().square().mean().sqrt()
    assert at_scope(w.run, PROBE, "output_rms", "layer")["3"] == pytest.approx(float(expected), rel=1e-5)
    assert failures(w.run) == []


def test_adapters_leave_the_layers_names_alone() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_gpt2(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    run = audited(model, [padded()])
    assert set(at_scope(run, PROBE, "dead_share", "layer")) == {"transformer.h.0", "transformer.h.1"}
    assert set(at_scope(run, PROBE, "units", "site")) == {f"transformer.h.{i}.mlp.act" for i in (0, 1)}
    assert {"transformer.h.0", "transformer.h.1"} <= set(at_scope(run, PROBE, "output_rms", "layer"))
