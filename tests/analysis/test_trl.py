"""The callback of document 000, exactly as printed, under the real trainers.

Neither passes inputs to its callbacks; the sparse metrics must be there all the same, from the batch that the model was
trained on last.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.analysis import AnalysisConfig, ModelAnalysisManager
from seeds import tiny
from seeds.fixtures import weights
from seeds.reader import block_at, table, with_mapped_imports

STEPS, INTERVAL = 7, 2  # the first call takes the reference; measured at steps 3, 5 and 7
CUT = 1e-3  # cuts the updates of the runs below in two
TIMES = ("time", "runtime", "per_second")


def config() -> AnalysisConfig:
    return AnalysisConfig(interval=INTERVAL, param_change_thresholds=[CUT], sparse_quality_thresholds=[CUT])


def printed_callback() -> Any:
    code, usage, _ = block_at("000", 185).text.partition("# Usage\n")
    assert usage
    names: dict[str, Any] = {"__name__": "document_000"}
    exec(with_mapped_imports(code, table()[0]), names)
    return names["ModelAnalysisCallback"]


def hooks_on(model: nn.Module) -> int:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    on_modules = sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return on_modules + sum(len(getattr(p, kind) or ()) for p in model.parameters() for kind in kinds)


@dataclass
class Seen:
    """A run as someone who only stands by sees it."""

    model: nn.Module
    trainer: Any = None
    batches: list[dict[str, Tensor]] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    hooks: list[int] = field(default_factory=list)
    measured: list[dict[str, float]] = field(default_factory=list)

    @property
    def logs(self) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in entry.items() if not key.endswith(TIMES)}
            for entry in self.trainer.state.log_history
        ]


def onlooker(seen: Seen, analyzer: ModelAnalysisManager | None) -> Any:
    """Keeps the weights of every step; an analyzer is given the batch by hand."""
    from transformers import TrainerCallback

    class Onlooker(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert kwargs.get("inputs") is None, "trainers do not pass inputs, or this test tests nothing"
            seen.weights.append(weights(kwargs["model"]))
            seen.hooks.append(hooks_on(kwargs["model"]))
            if analyzer is not None:
                metrics = analyzer.on_optimizer_step(kwargs["model"], inputs=seen.batches[-1])
                seen.measured += [metrics] if metrics else []

    return Onlooker()


class Sums(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        batches = tiny.token_batches(20)
        self.rows = [{key: value[row] for key, value in batch.items()} for batch in batches for row in (0, 1)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index]


def with_trainer(folder: Path, callbacks: list[Any], by_hand: ModelAnalysisManager | None = None) -> Seen:
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    seen = Seen(tiny.language_model())

    class Recorded(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.batches.append({key: value.clone() for key, value in inputs.items()})
            return super().compute_loss(model, inputs, *args, **kwargs)

    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2, seed=3,
        learning_rate=1e-3, lr_scheduler_type="constant", logging_steps=1, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    callbacks = [*callbacks, onlooker(seen, by_hand)]
    seen.trainer = Recorded(model=seen.model, args=arguments, train_dataset=Sums(), callbacks=callbacks)
    seen.trainer.train()
    return seen


def with_grpo(folder: Path, callbacks: list[Any], by_hand: ModelAnalysisManager | None = None) -> Seen:
    from trl import GRPOTrainer

    torch.manual_seed(0)
    seen = Seen(tiny.language_model())

    class Recorded(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            parts = {
                "input_ids": ("prompt_ids", "completion_ids"),
                "attention_mask": ("prompt_mask", "completion_mask"),
            }
            batch = {key: torch.cat([inputs[name] for name in names], 1) for key, names in parts.items()}
            # trained on are the completions only
            batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
            batch["labels"][:, : inputs["prompt_ids"].shape[1]] = -100
            seen.batches.append(batch)
            return super()._compute_loss(model, inputs)

    seen.trainer = Recorded(
        model=seen.model, reward_funcs=tiny.reward, args=tiny.grpo_arguments(folder, STEPS),
        processing_class=tiny.tokenizer(), train_dataset=tiny.prompts(),
        callbacks=[*callbacks, onlooker(seen, by_hand)],
    )  # fmt: skip
    seen.trainer.train()
    return seen


Run = Callable[..., Seen]


@pytest.fixture(scope="module", params=[with_trainer, with_grpo], ids=["trainer", "grpo"])
def train(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def wandb_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tiny.offline_wandb(tmp_path_factory.mktemp("wandb")) as run:
        yield run


@pytest.fixture(scope="module")
def analysed(train: Run, wandb_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A run with the printed callback; what that callback logged last is in `measured`."""
    before = wandb_run.summary.get("_step", -1)
    seen = train(tmp_path_factory.mktemp("run"), [printed_callback()(ModelAnalysisManager.create(config()))])
    logged = dict(wandb_run.summary)
    assert logged["_step"] - before == 3, "measured at steps 3, 5 and 7"
    names = [name for name in logged if name.startswith("analysis/")]
    seen.measured.append({name.removeprefix("analysis/"): logged[name] for name in names})
    return seen


def test_metrics_appear_though_the_callback_gets_no_inputs(analysed: Seen) -> None:
    (logged,) = analysed.measured
    delta = analysed.weights[6] - analysed.weights[4]
    unchanged = float((delta.abs() <= CUT).double().mean())
    assert 0.05 < unchanged < 0.95, "the test itself: the threshold cuts the update in two"
    assert logged["param_change/norm_l2"] == pytest.approx(float(delta.norm()), rel=1e-5)
    assert logged["param_change/sparsity_at_1e-03"] == pytest.approx(unchanged, abs=1e-3)
    assert logged["sparse/unchanged_ratio_at_1e-03"] == pytest.approx(unchanged, abs=1e-3)
    kl = kl_of_the_larger_changes(analysed)
    assert logged["sparse/kl_at_1e-03"] == pytest.approx(kl, rel=1e-3)
    assert 0 < kl < logged["sparse/kl_at_1e-03_random"]


def kl_of_the_larger_changes(seen: Seen) -> float:
    """KL(model ‖ model with the changes above the cut only), dropout off, in float64: the mean over the tokens of the
    last batch that were trained on, each at the position that predicts it."""
    old, new = seen.weights[4], seen.weights[6]
    batch = dict(seen.batches[-1])
    trained_on = batch.pop("labels")[:, 1:] != -100
    model = type(seen.model)(seen.model.config).double().eval()  # a new one: TRL has put a forward of its own on this
    logs = []
    for vector in (new, torch.where((new - old).abs() > CUT, new, old)):
        nn.utils.vector_to_parameters(vector, model.parameters())
        with torch.no_grad():
            logs.append(F.log_softmax(model(**batch).logits, dim=-1))
    full, sparse = logs
    each = (full.exp() * (full - sparse)).sum(-1)[:, :-1]
    return float(each[trained_on].mean())


def test_the_batch_that_is_captured_is_the_last_one_trained_on(train: Run, analysed: Seen, tmp_path: Path) -> None:
    """Not one of generation, nor one that the loader has fetched ahead: as if it had been passed by hand."""
    passed = train(tmp_path, [], by_hand=ModelAnalysisManager.create(config())).measured[-1]
    assert {name for name in passed if name.startswith("sparse/")}
    assert analysed.measured == [passed]


def test_training_is_the_same_bit_for_bit(train: Run, analysed: Seen, tmp_path: Path) -> None:
    plain = train(tmp_path, [])
    assert all(torch.equal(a, b) for a, b in zip(plain.weights, analysed.weights, strict=True))
    state, other = plain.model.state_dict(), analysed.model.state_dict()
    assert [name for name in state if not torch.equal(state[name], other[name])] == []
    assert plain.logs == analysed.logs
    assert len([entry for entry in plain.logs if "loss" in entry]) == STEPS
    assert not torch.equal(plain.weights[0], plain.weights[-1]), "the test itself: something was learned"


@pytest.mark.parametrize("end", ["reset", "gone"])
def test_no_hook_stays_on_the_model(train: Run, end: str, wandb_run: Any, tmp_path: Path) -> None:
    analyzer = ModelAnalysisManager.create(config())
    seen = train(tmp_path, [printed_callback()(analyzer)])
    assert max(seen.hooks) > 0, "the test itself: there was a hook"
    if end == "reset":
        analyzer.reset()
    else:
        seen.trainer = None  # it holds the callback, and that the manager
        del analyzer
        gc.collect()
    assert hooks_on(seen.model) == 0
