"""TRL's trainers with accumulation, clip and evaluation: the run says what a raw loop computes, and changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from integrations import hf_small as small
from integrations.hf_small import EVERY_STEP, logged, quiet
from learnscope.integrations.hf.ids import KEY
from seeds import tiny

STEPS, BETA = 5, 0.1


class Case(NamedTuple):
    """A trainer, the batches that its loss is computed of, and that loss for a raw loop."""

    trainer: Any
    batches: list[Any]
    part: Callable[[nn.Module, Any, Any], Tensor]


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return quiet(folder, max_steps=STEPS, logging_steps=1, eval_strategy="steps", eval_steps=STEPS, **more)


def recorded(trainer_class: Any, batches: list[Any]) -> Any:
    """The trainer, with copies of what its training loss is computed of."""

    class Recorded(trainer_class):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.model.training:
                batches.append({key: value for key, value in inputs.items() if isinstance(value, Tensor)})
            return super().compute_loss(model, inputs, *args, **kwargs)

    Recorded.__name__ = trainer_class.__name__
    return Recorded


def sums() -> list[dict[str, str]]:
    return [{"prompt": f"{a}+{b}=", "completion": f"{a + b}"} for a in range(4) for b in range(6)]


def pairs() -> list[dict[str, str]]:
    return [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "7*7"} for row in sums()]


def model_without_dropout() -> Any:
    torch.manual_seed(0)
    return tiny.language_model(attention_dropout=0.0)


def sft(folder: Path) -> Case:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    batches: list[Any] = []
    trainer = recorded(SFTTrainer, batches)(
        model=model_without_dropout(), args=SFTConfig(**options(folder), max_length=12),
        train_dataset=Dataset.from_list(sums()), eval_dataset=Dataset.from_list(sums()[::3]),
        processing_class=tiny.tokenizer(),
    )  # fmt: skip

    def part(model: nn.Module, batch: Any, step: Any) -> Tensor:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return small.token_loss(logits, batch["labels"]) / sum(small.tokens(each) for each in step)

    return Case(trainer, batches, part)


def dpo(folder: Path) -> Case:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    batches: list[Any] = []
    model = model_without_dropout()
    trainer = recorded(DPOTrainer, batches)(
        model=model, ref_model=copy.deepcopy(model), args=DPOConfig(**options(folder), max_length=12, beta=BETA),
        train_dataset=Dataset.from_list(pairs()), eval_dataset=Dataset.from_list(pairs()[::3]),
        processing_class=tiny.tokenizer(),
    )  # fmt: skip
    reference = model_without_dropout()

    def log_probabilities(model: nn.Module, batch: Any) -> Tensor:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        each = logits.log_softmax(-1).gather(2, batch["input_ids"][:, 1:, None]).squeeze(2)
        return (each * batch["completion_mask"][:, 1:]).sum(1)

    def part(model: nn.Module, batch: Any, step: Any) -> Tensor:
        with torch.no_grad():
            before = log_probabilities(reference, batch)
        chosen, rejected = (log_probabilities(model, batch) - before).chunk(2)
        return -F.logsigmoid(BETA * (chosen - rejected)).mean() / len(step)

    return Case(trainer, batches, part)


def reward(folder: Path) -> Case:
    from datasets import Dataset
    from transformers import LlamaForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    batches: list[Any] = []
    config = model_without_dropout().config
    config.num_labels = 1
    torch.manual_seed(0)
    trainer = recorded(RewardTrainer, batches)(
        model=LlamaForSequenceClassification(config), args=RewardConfig(**options(folder), max_length=12),
        train_dataset=Dataset.from_list(pairs()), eval_dataset=Dataset.from_list(pairs()[::3]),
        processing_class=tiny.tokenizer(),
    )  # fmt: skip

    def part(model: nn.Module, batch: Any, step: Any) -> Tensor:
        rewards = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.squeeze(1)
        chosen, rejected = rewards.chunk(2)
        return -F.logsigmoid(chosen - rejected).mean() / len(step)

    return Case(trainer, batches, part)


def grpo(folder: Path) -> Case:
    """With a reference model, which it loads from a folder, so that there is a KL."""
    from trl import GRPOConfig, GRPOTrainer

    batches: list[Any] = []
    base = folder / "base"
    model_without_dropout().save_pretrained(base)
    more = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "loss_type": "grpo", "beta": BETA}
    trainer = recorded(GRPOTrainer, batches)(
        model=str(base), reward_funcs=tiny.reward, processing_class=tiny.tokenizer(), train_dataset=tiny.prompts(),
        eval_dataset=tiny.prompts().select(range(4)),
        args=GRPOConfig(**(options(folder) | more), num_generations=4, max_completion_length=3),
    )  # fmt: skip

    def part(model: nn.Module, batch: Any, step: Any) -> Tensor:
        """The ratio is 1 in the only pass over a batch, and its gradient that of ln p; TRL weighs the KL by it too."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        width = batch["completion_ids"].shape[1]
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
        each = logits.log_softmax(-1).gather(2, batch["completion_ids"][:, :, None]).squeeze(2)
        ratio = torch.exp(each - each.detach())
        apart = batch["ref_per_token_logps"] - each
        losses = -ratio * batch["advantages"][:, None] + BETA * ratio * (apart.exp() - apart - 1)
        counted = batch["completion_mask"]
        return ((losses * counted).sum(1) / counted.sum(1)).mean() / len(step)

    return Case(trainer, batches, part)


class Watched(NamedTuple):
    name: str
    trainer: Any
    run: ls.Run
    batches: list[Any]
    plain: dict[str, Tensor]
    account: small.Account


@pytest.fixture(scope="module", params=[sft, dpo, reward, grpo], ids=lambda make: make.__name__)
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """The same training without and with a callback, and by a raw loop over the batches of the former."""
    from transformers import PrinterCallback

    plain = request.param(tmp_path_factory.mktemp("plain"))
    start = small.state(plain.trainer.model)
    plain.trainer.remove_callback(PrinterCallback)
    plain.trainer.train()
    seen = request.param(tmp_path_factory.mktemp("watched"))
    seen.trainer.remove_callback(PrinterCallback)
    holdout = [ls.Holdout(every=STEPS)] if request.param is not grpo else []
    callback = ls.watch_trainer(seen.trainer, probes=[*EVERY_STEP, *holdout])
    seen.trainer.train()
    # a new model: TRL has put a forward of its own on the trainer's, which a copy would share
    model = type(plain.trainer.model)(plain.trainer.model.config)
    model.load_state_dict(start)
    steps = [plain.batches[2 * k : 2 * k + 2] for k in range(STEPS)]
    account = small.raw_loop(model.train(), steps, lambda batch, step: plain.part(model, batch, step))
    state = small.state(plain.trainer.model)
    return Watched(request.param.__name__, seen.trainer, callback.run, seen.batches, state, account)


def test_the_run_equals_a_raw_loop(watched: Watched) -> None:
    small.assert_equals_the_loop(watched.run, watched.account)
    small.assert_no_failures(watched.run)


def test_final_weights_are_the_same_bits_without_it(watched: Watched) -> None:
    small.assert_same(watched.plain, small.state(watched.trainer.model))


LOGGED = {
    "sft": ["mean_token_accuracy", "entropy", "num_tokens", "eval_loss", "eval_mean_token_accuracy"],
    "dpo": ["rewards/chosen", "rewards/margins", "rewards/accuracies", "logps/chosen", "eval_rewards/margins"],
    "reward": ["accuracy", "margin", "mean_reward", "eval_accuracy"],
    "grpo": ["reward", "reward_std", "completions/mean_length", "kl", "rewards/reward/mean", "eval_reward"],
}


def test_its_own_numbers_are_rows_under_their_names(watched: Watched) -> None:
    for entry in watched.trainer.state.log_history:
        for name in entry.keys() & set(LOGGED[watched.name]):
            assert logged(watched.run, name)[entry["step"]] == entry[name]
        if "loss" in entry:  # logged at every step: the very number
            assert logged(watched.run)[entry["step"]] == entry["loss"]
    for name in LOGGED[watched.name]:
        assert logged(watched.run, name), name


def test_the_holdout_has_the_trainers_own_loss(watched: Watched) -> None:
    facts = watched.run.manifest["attempts"][-1]
    if watched.name == "grpo":
        assert facts["holdout"]["source"].startswith("none: GRPOTrainer trains on completions that it generates")
        return
    assert facts["holdout"] == {"source": "evaluation set", "examples": 8}
    frame = watched.run.frame("Holdout", "holdout_loss")
    ours, theirs = float(frame.value.iloc[-1]), logged(watched.run, "eval_loss")[STEPS]
    # SFT's evaluation is a mean of batches, ours of tokens
    assert ours == pytest.approx(theirs, rel=0.05 if watched.name == "sft" else 1e-4)
    assert "loss" not in frame or frame.loss.isna().all(), "it is known to be the loss that is trained with"
    right = watched.run.frame("Holdout", "holdout_accuracy").value.iloc[-1]
    key = {"sft": "eval_mean_token_accuracy", "dpo": "eval_rewards/accuracies", "reward": "eval_accuracy"}[watched.name]
    assert right == pytest.approx(logged(watched.run, key)[STEPS], abs=0.05 if watched.name == "sft" else 1e-6)


def test_ids_go_through_generation(watched: Watched) -> None:
    """The batches of GRPO are generated, shuffled and split; each completion still says whose prompt it answers."""
    if watched.name != "grpo":
        assert all(KEY not in batch for batch in watched.batches), "the trainer's own code never sees them"
        return
    prompts, tokenizer = watched.trainer.train_dataset, watched.trainer.processing_class
    assert len({int(place) for batch in watched.batches for place in batch[KEY]}) > 4
    for batch in watched.batches:
        texts = tokenizer.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
        assert [text.replace(" ", "") for text in texts] == [prompts[int(place)]["prompt"] for place in batch[KEY]]


def test_probes_that_follow_examples_are_refused_by_name(watched: Watched) -> None:
    reasons = {
        "sft": "SFTTrainer cannot give them: its loss is computed without logits",
        "dpo": "its loss is of pairs", "reward": "its loss is of pairs",
        "grpo": "it trains on completions that it generates",
    }  # fmt: skip
    trainer = watched.trainer
    callback = ls.watch_trainer(trainer, probes=[ls.ExampleLedger()], run=Path(trainer.args.output_dir) / "refused")
    try:
        with pytest.raises(ValueError, match=f"ExampleLedger follows examples.*{reasons[watched.name]}"):
            trainer.train()
        if watched.name == "sft":
            trainer.args.packing = True
            with pytest.raises(ValueError, match=r"packing=True joins several examples in one row.*packing=False"):
                trainer.train()
    finally:
        trainer.remove_callback(callback)
        trainer.args.packing = False
    assert not callback.folders
    assert not (Path(trainer.args.output_dir) / "refused").exists(), "before anything is written"
