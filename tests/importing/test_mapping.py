"""Which foreign names become which quantities, what is asked for, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import learnscope as ls
from learnscope.quantities.outputs import Loss


def became(tmp_path: Path, *names: str, value: str = "0.5", **options: object) -> dict[str, str]:
    path = tmp_path / "t.csv"
    path.write_text(",".join(["step", *names]) + "\n" + ",".join(["1", *[value] * len(names)]) + "\n")
    run = ls.import_run(path, **options)  # type: ignore[arg-type]
    assert len(run.frame()) == sum("left out" not in e["became"] for e in run.manifest["imported"]["names"])
    return {entry["name"]: entry["became"] for entry in run.manifest["imported"]["names"]}


@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        ("loss", "Loss.loss"), ("train/loss", "Loss.loss"), ("Train Loss", "Loss.loss"), ("train_loss", "Loss.loss"),
        ("training.loss", "Loss.loss"), ("loss/train", "Loss.loss"), ("train_loss_step", "Loss.loss"),
        ("eval_loss", "Holdout.holdout_loss"), ("eval/loss", "Holdout.holdout_loss"),
        ("val_loss", "Holdout.holdout_loss"), ("validation/epoch_loss", "Holdout.holdout_loss"),
        ("test/loss", "Holdout.holdout_loss"), ("val/accuracy", "Holdout.holdout_accuracy"),
        ("eval_top1", "Holdout.holdout_accuracy"), ("val_acc", "Holdout.holdout_accuracy"),
        ("train/accuracy", "Loss.accuracy"), ("learning_rate", "LearningRate.learning_rate of group_0"),
        ("train/learning_rate", "LearningRate.learning_rate of group_0"),
        ("lr-AdamW", "LearningRate.learning_rate of group_0"), ("lr/pg0", "LearningRate.learning_rate of group_0"),
        ("grad_norm", "GradientFlow.norm (stage=before_clip)"), ("train/reward", "Loss.reward"),
    ],
)  # fmt: skip
def test_known_names(tmp_path: Path, name: str, quantity: str) -> None:
    assert became(tmp_path, name) == {name: quantity}


@pytest.mark.parametrize(
    "name",
    [
        "perplexity", "box_loss", "eval_squad_loss", "lr_decay", "lr-AdamW-momentum", "my_loss", "val", "loss_scale",
        "grad_norm/layer.0", "train/train_loss", "losses",
    ],
)  # fmt: skip
def test_other_names_keep_their_own(tmp_path: Path, name: str) -> None:
    assert became(tmp_path, name) == {name: "kept under its own name"}


def test_of_several_names_for_one_quantity_one_is_taken_and_none_is_lost(tmp_path: Path) -> None:
    found = became(tmp_path, "train_loss", "loss", "val_loss", "test_loss", "eval_loss")
    assert found == {
        "loss": "Loss.loss", "eval_loss": "Holdout.holdout_loss", "train_loss": "kept under its own name",
        "val_loss": "kept under its own name", "test_loss": "kept under its own name",
    }  # fmt: skip
    groups = became(tmp_path, "lr-AdamW/pg2", "lr-AdamW/pg1")
    assert groups == {
        "lr-AdamW/pg1": "LearningRate.learning_rate of group_0",
        "lr-AdamW/pg2": "LearningRate.learning_rate of group_1",
    }


def test_what_is_asked_for_goes_before_what_names_say(tmp_path: Path) -> None:
    found = became(tmp_path, "loss", "xent", "val_loss", "x", map={
        "xent": "Loss.loss", "val_loss": "own", "x": "nothing",
    })  # fmt: skip
    assert found == {
        "xent": "Loss.loss", "loss": "kept as imported/loss", "val_loss": "kept under its own name", "x": "left out",
    }  # fmt: skip
    assert became(tmp_path, "a", map={"a": "holdout_loss"}) == {"a": "Holdout.holdout_loss"}
    assert became(tmp_path, "a", map={"a": Loss.loss}) == {"a": "Loss.loss"}
    assert became(tmp_path, "loss", map={"loss": "own"}) == {"loss": "kept as imported/loss"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"a": "Loss.los"}, "there is no quantity 'Loss.los'. Did you mean 'Loss.loss'"),
        ({"c": "Loss.loss"}, r"none of the trainings has 'c'.* There are: a, b"),
        ({"aa": "Loss.loss"}, "Did you mean 'a'"),
        ({"a": "Loss.loss", "b": "Loss.loss"}, "a and b cannot both become Loss.loss"),
        ({"a": "accuracy"}, "accuracy is a number of several probes"),
        ({"a": "GradientFlow.gradient_to_weight"}, "is a number of each layer, not of a whole model"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, asked: dict[str, str], message: str) -> None:
    with pytest.raises(ls.RunError, match=message):
        became(tmp_path, "a", "b", map=asked)


def test_a_learning_rate_of_0_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("step,loss,lr\n" + "".join(f"{s},{2 + 0.1 * (s % 3)},0.0\n" for s in range(60)))
    assert "learning_rate_zero" in [finding.kind for finding in ls.import_run(path).findings()]
