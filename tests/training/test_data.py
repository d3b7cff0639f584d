"""Data sets in every form that is taken, as examples for the trainers; and those that cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

import learnscope as ls
from learnscope.training.builtin import MARK
from learnscope.training.data.batches import holdout_batches
from learnscope.training.data.rewards import answer_in, evaluate
from learnscope.training.data.sources import Data, load_data
from learnscope.training.errors import TrainError
from learnscope.training.settings.config import Config
from training.small import trained

PROBLEMS = [{"target": 14, "nums": [3, 4, 7]}, {"target": 24, "nums": [8, 8, 3, 3]}, {"target": 5, "nums": [1, 1]},
            {"target": 12, "nums": [3, 4]}, {"target": 6, "nums": [2, 3]}]  # fmt: skip
ASKED = [{"prompt": f"what is {n}?", "answer": f"it is {n}"} for n in range(10)]


def config(path: Any = None, method: str = "sft", **dataset: Any) -> Config:
    made = Config()
    made.training.method = method  # type: ignore[assignment]
    made.dataset.dataset_name_or_path = None if path is None else str(path)
    for name, value in dataset.items():
        setattr(made.dataset, name, value)
    return made


def load(path: Any = None, method: str = "sft", *, builtin: bool = True, chat: bool = False, **dataset: Any) -> Data:
    return load_data(config(path, method, **dataset), builtin=builtin, chat=chat)


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_generated_data() -> None:
    data = load(num_examples=50, holdout_examples=8)
    assert (len(data.train), len(data.holdout)) == (42, 8)
    assert data.reward is None
    for row in [*data.train, *data.holdout]:
        found = evaluate(row["completion"])
        assert found is not None
        assert found.value == row["target"]
        assert sorted(found.numbers) == sorted(row["nums"])
        assert row["prompt"] == f"{' '.join(map(str, row['nums']))}:{row['target']}="
    assert load(num_examples=50, seed=1).train["prompt"] != data.train["prompt"][:34]
    assert len(load().train) == 2048 - 16


def test_countdown_data_are_worded_and_rewarded_as_generated_ones(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "c.jsonl", PROBLEMS)
    sft = load(file, builtin=False, chat=True, holdout_examples=1)
    assert len(sft.train) == 3
    assert sft.about.endswith("1 without a solution left out")
    assert sft.train[1]["prompt"] == [{
        "role": "user",
        "content": "Using the numbers 8, 8, 3, 3, write an arithmetic expression that equals 24. Use + - * / and "
        "parentheses, and every number exactly once. Give the expression alone between <answer> and </answer>.",
    }]  # fmt: skip
    assert sft.train[1]["completion"] == [{"role": "assistant", "content": "<answer>8/(3-8/3)</answer>"}]
    grpo = load(file, "grpo", holdout_examples=1)
    assert len(grpo.train) == 4, "what has no solution can still be asked"
    assert "completion" not in grpo.train.column_names
    assert grpo.holdout[0]["completion"] == "2*3"
    assert grpo.reward is not None
    said = [row["prompt"].replace(":", "") for row in grpo.train]
    assert grpo.reward(["3+4+7", "8/(3-8/3)", "1+1", "3*4"], nums=grpo.train["nums"], target=grpo.train["target"],
                       prompts=said) == [1.0, 1.0, pytest.approx(0.3), 1.0]  # fmt: skip
    other = load(file, prompt_template="{target}<-{numbers}", holdout_examples=0)
    assert other.train[0]["prompt"] == "14<-3, 4, 7"
    assert answer_in(other.train[0]["completion"]) == "3+4+7"


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet", "folder", "splits"])
def test_every_form_of_file(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{form}"
    rows = [{"prompt": f"ü {n}", "completion": str(n)} for n in range(10)]
    if form == "jsonl":
        jsonl(path, rows)
    elif form == "json":
        path.write_text(json.dumps(rows))
    elif form == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif form == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif form == "folder":
        Dataset.from_list(rows).save_to_disk(path)
    else:
        DatasetDict({"train": Dataset.from_list(rows[:3]), "test": Dataset.from_list(rows)}).save_to_disk(path)
    split = "test[20%:7]" if form == "splits" else "train[20%:7]"
    data = load(path, split=split, holdout_examples=1)
    assert list(data.train) == rows[2:6]
    assert list(data.holdout) == rows[6:7]


def test_columns(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", ASKED)
    assert load(file, holdout_examples=0).train[3] == {"prompt": "what is 3?", "completion": "it is 3"}
    grpo = load(file, "grpo", holdout_examples=2)
    assert grpo.train[3] == {"prompt": "what is 3?", "answer": "it is 3"}
    assert grpo.reward is not None
    assert grpo.reward(["It is  3", "4"], answer=["it is 3", "it is 4"]) == [1.0, 0.0]
    named = load(file, prompt_column="answer", completion_column="prompt", holdout_examples=0)
    assert named.train[0] == {"prompt": "it is 0", "completion": "what is 0?"}
    text = jsonl(tmp_path / "t.jsonl", [{"text": "a"}, {"text": "b"}])
    assert list(load(text, holdout_examples=1).train) == [{"text": "a"}]
    talk = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}]
    file = jsonl(tmp_path / "m.jsonl", talk)
    assert list(load(file).train) == talk
    assert load(file).holdout is None, "one example is trained on"
    assert load(file, "grpo").train[0] == {"prompt": talk[0]["messages"][:1], "answer": "ho"}


@pytest.mark.parametrize(
    ("text", "dataset", "message"),
    [
        ('{"prompt": "a"\n', {}, "line 1 is not JSON"),
        ('{"prompt": "a", "completion": "b"}\n[1]\n', {}, "line 2: not an object"),
        ("", {}, "has no examples"),
        ('{"question": "a"}\n', {}, "has the columns question, none of which is known"),
        ('{"question": "a"}\n', {"prompt_column": "questions"}, "Did you mean 'question'"),
        ('{"prompt": "a"}\n', {}, "sft learns from completions"),
        ('{"prompt": "a"}\n', {"method": "grpo"}, "grpo rewards right answers, and this data set has none"),
        ('{"text": "a"}\n', {"method": "grpo"}, "grpo rewards right answers"),
        ('{"prompt": "a", "completion": null}\n', {}, "row 1: 'completion' is None"),
        ('{"prompt": "", "completion": "b"}\n', {}, "row 1: 'prompt' is ''"),
        ('{"nums": [1.5], "target": 3}\n', {}, "row 1: `nums` must be a list of whole numbers"),
        ('{"nums": [1], "target": "x"}\n', {}, "row 1: `nums` must be"),
        ('{"nums": [1, 1], "target": 9}\n', {}, "no example is left to train on"),
        ('{"nums": [1, 1, 1, 1, 1, 1], "target": 6}\n', {}, "more than 5 are not solved here"),
        ('{"nums": [1], "target": 1}\n', {"prompt_template": "{numbers}"}, "must hold {target}"),
        ('{"text": "a"}\n', {"split": "test"}, "is one set of rows, called 'train'"),
        ('{"text": "a"}\n', {"split": "train[1"}, "is not understood; write train"),
        ('{"messages": [{"role": "user", "content": "a"}]}\n', {"method": "grpo"}, "ends with what the assistant"),
    ],
)
def test_what_is_refused(text: str, dataset: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(TrainError) as refused:
        load(file, **dataset)
    assert message in str(refused.value)


def test_files_that_are_not_there_or_not_data(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="there is no file or folder"):
        load(tmp_path / "a.jsonl")
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(TrainError, match="cannot be read as parquet"):
        load(tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("no")
    with pytest.raises(TrainError, match=r"files end with \.jsonl"):
        load(tmp_path / "a.txt")
    with pytest.raises(TrainError, match=r"no folder that Dataset\.save_to_disk wrote"):
        load(tmp_path)
    DatasetDict({"test": Dataset.from_list(ASKED)}).save_to_disk(tmp_path / "d")
    with pytest.raises(TrainError, match="has no split 'train'; it has test"):
        load(tmp_path / "d")


def test_a_file_is_trained_on_with_both_methods(base: Path, tmp_path: Path) -> None:
    file = jsonl(tmp_path / "c.jsonl", [*PROBLEMS, *PROBLEMS])
    line = ["--config.dataset.dataset_name_or_path", str(file), "--config.dataset.holdout_examples", "2"]
    outcome, said = trained(base, tmp_path / "sft", *line, max_steps=2, per_device_train_batch_size=4)
    assert "10 examples of" in said
    assert outcome.trainer.state.global_step == 2
    short = {"method": "grpo", "num_generations": 2, "max_completion_length": 4, "per_device_train_batch_size": 4}
    outcome, _ = trained(base, tmp_path / "grpo", *line, "--enable_tracking", "--tracking_frequency", "1", **short,
                         max_steps=2, beta=0.05)  # fmt: skip
    first = next(entry for entry in outcome.trainer.state.log_history if "kl" in entry)
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert set(outcome.trainer.model.peft_config) == {"default"}, "no copy of the adapter is made as a reference"


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_a_model_that_converses_is_asked_in_messages(base: Path, tmp_path: Path, method: str) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(base, tmp_path / "chat")
    (tmp_path / "chat" / MARK).unlink()  # a model like any other
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "chat")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "chat")
    short = {"num_generations": 2, "max_completion_length": 4, "per_device_train_batch_size": 4, "max_steps": 2}
    flags = ["--enable_spectral_tracking", "--tracking_frequency", "1"]
    outcome, _ = trained(tmp_path / "chat", tmp_path / "out", *flags, method=method, **short)
    batch = holdout_batches(outcome.trainer, outcome.trainer.eval_dataset or kept_aside(), method)
    assert batch is not None
    ids, labels = batch[0]["input_ids"][0], batch[0]["labels"][0]
    asked = tokenizer.decode(ids[labels == -100], skip_special_tokens=True)
    told = tokenizer.decode(ids[labels != -100], skip_special_tokens=True)
    assert asked.startswith("user: Using the numbers")
    assert asked.endswith("assistant: ")
    assert told.startswith("<answer>")
    record = next(r for r in ls.open_run(tmp_path / "out" / "run").records() if r.probe == "AdapterTruncation")
    assert (record.error, record.notes["examples"]) == (None, 8)


def kept_aside() -> Any:
    """Those of the training with GRPO, which keeps them to itself."""
    made = config(method="grpo", num_examples=48, holdout_examples=8)
    return load_data(made, builtin=False, chat=True).holdout
