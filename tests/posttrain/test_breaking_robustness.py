"""Robustness where it is easily measured wrongly: linear losses, short texts, missing targets, odd embeddings."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from findings.made_run import MadeRun
from learnscope.core.probe import Probe
from learnscope.findings import Cuts, find
from learnscope.model.data import DataError
from learnscope.model.robustness.ball import token_distances
from learnscope.model.robustness.target import find_target
from learnscope.model.robustness.token_noise import drop_tokens
from learnscope.posttrain.robustness import RobustnessAnalyzer
from learnscope.posttrain.session import AuditSession
from learnscope.probes.robustness.attacks import Attacks
from learnscope.probes.robustness.bit_robustness import BitRobustness
from learnscope.probes.robustness.input_perturbation import InputPerturbation
from learnscope.probes.robustness.noise_robustness import NoiseRobustness
from learnscope.record import Column, Finding, Table
from learnscope.task import task_for
from report.audit.audit_runs import AuditRun, columns

ALL: list[Probe] = [
    Attacks(steps=2, seeds=1, examples=4),
    NoiseRobustness(sigmas=(0.1,), bits=(4,), examples=4),
    InputPerturbation(levels=(0.5,), examples=4),
    BitRobustness(bits=(4,), steps=2, examples=4),
]


def gpt2(**more: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, **{"bos_token_id": 0, "eos_token_id": 0, **more}))


def tokens(rows: int = 4, length: int = 6) -> Tensor:
    return torch.randint(1, 40, (rows, length), generator=torch.Generator().manual_seed(1))


def said(run: MadeRun, kind: str) -> Finding:
    [found] = [one for one in find(run.reader, Cuts()) if one.kind == kind]
    return found


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_linear_model_is_attacked_to_the_last_digit_and_not_suspected(norm: str) -> None:
    """The worst point of logistic regression is known: the margin falls by ε·‖w‖ in the dual norm."""
    torch.manual_seed(0)
    model = nn.Linear(30, 1).double()
    x, y = torch.randn(20, 30, dtype=torch.float64), torch.randint(0, 2, (20,))
    data = [(x, y)]
    found = RobustnessAnalyzer(AuditSession(model)).test_adversarial_robustness(
        data, (0.02, 0.3), norm=norm, unit="absolute"
    )
    weight = model.weight.detach()[0]
    dual = float(weight.norm() if norm == "l2" else weight.abs().sum())
    for entry in found["pgd"]:
        margin = (2 * y - 1) * model(x).detach()[:, 0] - entry["epsilon"] * dual
        assert entry["loss"] == pytest.approx(float(F.softplus(-margin).mean()), rel=1e-9)
        if entry["epsilon"] == 0.3:
            assert entry["accuracy"] == pytest.approx(float((margin > 0).double().mean()))
    assert found["flags"] == dict.fromkeys(found["flags"], True)


def test_short_texts_and_rows_without_a_target_are_no_signs_of_masking() -> None:
    """In a causal model nothing is predicted from the last token, and nothing at all for a row without labels."""
    model, ids = gpt2().eval(), tokens()
    labels = ids.clone()
    labels[1] = -100
    mask = torch.ones_like(ids)
    mask[2] = 0
    session = AuditSession(model)
    found = RobustnessAnalyzer(session).test_adversarial_robustness(
        {"input_ids": ids, "labels": labels, "attention_mask": mask}, (0.1, 0.5), steps=3, restarts=2, seeds=1, texts=0
    )
    assert {entry["zero_gradient_share"] for entry in (*found["fgsm"], *found["pgd"])} == {0.0}
    assert "not_finite" not in found
    assert found["positions"] == 2 * 5
    assert "audit_gradient_masking" not in {one.kind for one in session.run.findings()}
    dead = nn.Sequential(nn.Embedding(40, 8), nn.Flatten(), nn.Linear(48, 3))
    nn.init.zeros_(dead[2].weight)
    record = AuditSession(dead).measure(Attacks(steps=1, seeds=1, texts=0), [(ids, torch.tensor([0, 1, 2, 0]))])
    assert {row.value for row in record.rows() if row.name == "zero_gradient_share" and row.scope == "fgsm"} == {1.0}


@pytest.mark.parametrize("probe", ALL, ids=lambda probe: type(probe).__name__)
def test_examples_without_any_target_are_refused_by_name(probe: Probe) -> None:
    batch = {"input_ids": tokens(), "labels": torch.full((4, 6), -100)}
    with pytest.raises(DataError, match="no position of these 4 examples has a target"):
        AuditSession(gpt2()).measure(probe, [batch])


@pytest.mark.parametrize("kind", [Attacks, BitRobustness])
@pytest.mark.parametrize(
    "wrong",
    [{"norm": "L2"}, {"unit": "tokens"}, {"per": "word"}, {"clip": (1, 0)}, {"clip": 5}, {"clip": ("a", "b")},
     {"clip": (0, math.nan)}],
    ids=str,
)  # fmt: skip
def test_a_threat_that_is_misspelt_is_not_taken_for_another(kind: Any, wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(ValueError, match=rf"{kind.__name__}\({name}="):
        kind(**wrong)


def test_distances_between_tokens_where_rows_are_nan_equal_or_zero() -> None:
    model, ids = gpt2(), tokens(3, 5)
    table = model.transformer.wte.weight.data
    table[ids[0, 0]], table[ids[0, 1]] = table[ids[0, 2]], 0
    unused = next(one for one in range(1, 40) if one not in ids)
    table[unused] = math.nan
    batch = {"input_ids": ids}
    task = task_for(batch, model)
    [found] = token_distances(model, [find_target(model, task, batch)], None)
    assert found is not None
    rows = table.double()
    for row, column in [(0, 0), (0, 1), (0, 2), (2, 4)]:
        apart = (rows - rows[ids[row, column]]).norm(dim=1)[1:]  # 0 is no text
        nearest = apart[apart.isfinite() & (apart > 0)].min()
        assert float(found[row, column]) == pytest.approx(float(nearest), rel=1e-9)
    table[:] = table[ids[0, 0]].clone()
    with pytest.raises(ValueError, match="no other one that differs"):
        AuditSession(model).measure(Attacks(steps=1, seeds=1), [batch])
    record = AuditSession(model).measure(Attacks(steps=1, seeds=1, unit="absolute", texts=1), [batch])
    [row, *_] = [row for row in record.rows() if row.name == "epsilon_token"]
    assert (row.value, row.status) == (None, "no token of the data has another that differs from it")


def test_an_encoder_with_an_embedding_of_its_own_is_attacked_there() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).double().eval()
    ids, labels = tokens(), tokens().flip(1)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    found = RobustnessAnalyzer(AuditSession(model)).test_adversarial_robustness(
        batch, (0.1,), unit="absolute", steps=1, texts=0, seeds=1
    )
    embedded = model.shared.weight.detach()[ids].requires_grad_()
    decoder = {"decoder_input_ids": model._shift_right(labels), "attention_mask": batch["attention_mask"]}

    def loss(inputs: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs_embeds=inputs, **decoder).logits.flatten(0, 1), labels.flatten())

    (gradient,) = torch.autograd.grad(loss(embedded), [embedded])
    moved = embedded + 0.1 * gradient / gradient.norm(dim=2, keepdim=True)
    assert found["fgsm"][0]["loss"] == pytest.approx(float(loss(moved.detach()).detach()), rel=1e-9)
    # the decoder's labels are as many as the input's tokens, and are none of them
    made = drop_tokens(model, task_for(batch, model), batch, 0.5, torch.Generator().manual_seed(0)).batch
    assert torch.equal(made["labels"], labels)
    text = (ids != config.eos_token_id).sum(1).tolist()
    assert made["attention_mask"].sum(1).tolist() == [6 - round(0.5 * n) for n in text]
    assert made["input_ids"].shape == made["attention_mask"].shape
    record = AuditSession(model).measure(InputPerturbation(levels=(0.5,)), [batch])
    assert record.notes["positions"] == labels.numel()


def test_as_many_answers_as_tokens_and_a_padding_id_that_the_model_does_not_know() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=40, num_labels=6, **sizes))
    batch = {"input_ids": tokens(), "labels": (tokens() > 20).float()}
    record = AuditSession(model).measure(InputPerturbation(levels=(0.5,)), [batch])
    [clean] = [row.value for row in record.rows() if row.name == "loss_mean" and row.scope == "clean"]
    [worse] = [row.value for row in record.rows() if row.name == "loss_mean" and row.scope == "token_dropout"]
    assert worse is not None
    assert 0 < abs(worse - clean) < 0.2
    language = gpt2(eos_token_id=50256)
    ids, mask = tokens(), torch.ones(4, 6, dtype=torch.long)
    mask[0], mask[1, 4:] = 0, 0
    record = AuditSession(language).measure(
        InputPerturbation(levels=(0.3,)), [{"input_ids": ids, "attention_mask": mask}]
    )
    assert all(row.value is not None for row in record.rows() if row.name == "loss_mean")


def test_a_gap_where_there_was_nothing_to_lose_is_not_called_robust() -> None:
    poor = AuditRun(2)
    values = {"accuracy": 0.05, "loss": 5.0, "kl": 0.1}
    tables = [Table("attack", [name], columns(values, norm="l2", epsilon=epsilon, unit="token", steps=1))
              for name, epsilon in (("clean", 0.0), ("fgsm", 1.0), ("pgd", 1.0))]  # fmt: skip
    gap: dict[str, Any] = {"robustness_gap": 0.0, "robustness_gap_low": -0.01, "robustness_gap_high": 0.01}
    poor.speed(scale=10)  # fast enough, so that robustness decides
    poor.once("Attacks", [*tables, Table("model", ["model"], columns(gap))], target="inputs", examples=32)
    assert "says nothing: clean accuracy is 0.05" in said(poor, "audit_robustness_gap").title
    assert said(poor, "audit_suits_server").title.startswith("Whether it suits servers open to strangers cannot be")
    session = AuditSession(nn.Linear(4, 2))
    session.measure(Attacks(epsilons=(0,), seeds=1), [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))])
    [found] = [one for one in session.run.findings() if one.kind == "audit_robustness_gap"]
    assert "every epsilon was 0" in found.title


def test_damage_that_helps_or_comes_and_goes_is_said_so() -> None:
    def run(*accuracies: float) -> Finding:
        made = AuditRun(2)
        tables = [Table("perturbation", ["clean"], [Column("accuracy_mean", [0.5], {"level": 0.0})])]
        for level, mean in zip((0.05, 0.1, 0.2), accuracies, strict=True):
            numbers = {"accuracy_mean": mean, "accuracy_mean_low": mean - 0.02, "accuracy_mean_high": mean + 0.02}
            tables.append(Table("perturbation", ["token_dropout"], columns({**numbers, "seeds": 5}, level=level)))
        made.once("InputPerturbation", tables)
        return said(made, "audit_token_dropout")

    assert run(0.5, 0.55, 0.6).title.endswith("by 0.1, for the better")
    assert "at no level that was tried" in run(0.5, 0.55, 0.6).advice
    odd = run(0.4, 0.5, 0.49)
    assert odd.title.endswith("which cannot be told from chance")
    assert "at 5 %, but not at stronger levels" in odd.advice
    assert "from 10 % on" in run(0.49, 0.4, 0.3).advice


def traces(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {f"weight {name}": p.detach().clone() for name, p in model.state_dict().items()}
    found |= {f"grad {name}": None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    found |= {f"frozen {name}": p.requires_grad for name, p in model.named_parameters()}
    found |= {f"mode {name}": m.training for name, m in model.named_modules()}
    found |= {f"hooks {name}": len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in model.named_modules()}
    return {
        **found,
        "random": torch.get_rng_state(),
        "cache": model.config.use_cache,
        "threads": torch.get_num_threads(),
    }


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[key], b[key]) if isinstance(a[key], Tensor) else a[key] == b[key] for key in a
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_trace_the_same_again_and_nothing_computed_twice(dtype: torch.dtype, tmp_path: Path) -> None:
    model = gpt2().to(dtype).train()
    model.gradient_checkpointing_enable()
    model.transformer.h[0].eval().requires_grad_(False)
    ids = tokens()
    model(input_ids=ids, labels=ids).loss.backward()
    before = traces(model)
    first = [AuditSession(model).measure(probe, [{"input_ids": ids}]).rows() for probe in ALL]
    assert equal(before, traces(model))
    plain = [[(row.name, row.scope, row.labels, row.value) for row in rows] for rows in first]
    for _ in range(2):
        session = AuditSession(copy.deepcopy(model), cache=tmp_path)
        again = [session.measure(probe, [{"input_ids": ids}]).rows() for probe in ALL]
        assert [[(row.name, row.scope, row.labels, row.value) for row in rows] for rows in again] == plain
    assert session.memo.computed == 0
    failing = model.lm_head.register_forward_hook(lambda *_: 1 / 0)
    before = traces(model)
    for probe in ALL:
        with pytest.raises(ZeroDivisionError):
            AuditSession(model).measure(probe, [{"input_ids": ids}])
        assert equal(before, traces(model))
    failing.remove()
