"""Examples in the form that the trainers take, with a few held out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset  # type: ignore[import-untyped]

from learnscope.options import did_you_mean
from learnscope.sources import SourceError, read_rows
from learnscope.training.data.countdown import BRIEF, SOLVED_UP_TO, WORDED, generate, prompt, solve
from learnscope.training.data.rewards import answer_reward, countdown_reward
from learnscope.training.errors import TrainError
from learnscope.training.settings.config import Config, DatasetConfig

GENERATED = 2048
FILES = (".jsonl", ".json", ".csv", ".parquet")
_OPTIONS = {"name": "config.dataset.dataset_name_or_path: ", "split": "config.dataset.split: "}
Row = Mapping[str, Any]
Reward = Callable[..., list[float]]


@dataclass(frozen=True, slots=True)
class Data:
    """Training examples, held-out examples, and for GRPO their reward."""

    train: Any
    holdout: Any
    reward: Reward | None
    about: str


def load_data(config: Config, *, builtin: bool, chat: bool) -> Data:
    """The data set of a training. `builtin`: for the built-in model; `chat`: its tokenizer has a chat template."""
    rows, about = _rows(config)
    columns = columns_of(rows.column_names, config.dataset)
    reward: Reward | None
    if not columns:
        template = config.dataset.prompt_template or (BRIEF if builtin else WORDED)
        examples, reward = _countdown(rows, config, template, chat=chat), countdown_reward
    else:
        examples, reward = _given(rows, columns, config.training.method), answer_reward
    if not examples:
        raise TrainError(f"{about}: no example is left to train on")
    if len(examples) < len(rows):
        about += f", {len(rows) - len(examples):,} without a solution left out"
    trained = len(examples) - min(config.dataset.holdout_examples, len(examples) // 2)
    # GRPO does not train on completions; held-out examples keep them, for the probes
    hidden = () if config.training.method == "sft" else ("completion",)
    train = [{name: value for name, value in row.items() if name not in hidden} for row in examples[:trained]]
    holdout = Dataset.from_list(examples[trained:]) if examples[trained:] else None
    return Data(Dataset.from_list(train), holdout, reward if config.training.method == "grpo" else None, about)


def _rows(config: Config) -> tuple[Any, str]:
    dataset = config.dataset
    if dataset.dataset_name_or_path is None:
        problems = generate(dataset.num_examples or GENERATED, dataset.seed)
        rows = Dataset.from_list([{"nums": numbers, "target": target} for numbers, target in problems])
        return rows, f"{len(rows):,} generated countdown problems"
    try:
        rows = read_rows(
            dataset.dataset_name_or_path, split=dataset.split, name=dataset.name, only="train", endings=FILES
        )
    except SourceError as error:
        raise TrainError(f"{_OPTIONS.get(error.about or '', '')}{error}") from None
    rows = Dataset.from_list(rows) if isinstance(rows, list) else rows
    if dataset.num_examples is not None:
        rows = rows.select(range(min(dataset.num_examples, len(rows))))
    return rows, f"{len(rows):,} examples of {dataset.dataset_name_or_path}"


def _countdown(rows: Sequence[Row], config: Config, template: str, *, chat: bool) -> list[dict[str, Any]]:
    """Questions, numbers and targets; for SFT also a solution, without problems that have none."""
    for place in ("{numbers}", "{target}"):
        if place not in template:
            raise TrainError(f"config.dataset.prompt_template must hold {place}: {template!r} does not")
    wrap = "{}" if template == BRIEF else "<answer>{}</answer>"
    sft = config.training.method == "sft"
    solved_from = 0 if sft else len(rows) - config.dataset.holdout_examples
    examples = []
    for number, row in enumerate(rows):
        numbers, target = _problem(row, number + 1)
        solvable = len(numbers) <= SOLVED_UP_TO
        if sft and not solvable:
            raise TrainError(
                f"row {number + 1} has {len(numbers)} numbers; problems of more than {SOLVED_UP_TO} are not solved "
                "here, and sft needs solutions: use --config.training.method grpo, or give them as completions"
            )
        solution = solve(numbers, target) if solvable and number >= solved_from else None
        if sft and solution is None:
            continue
        question = _message("user", prompt(numbers, target, template), chat)
        answer = None if solution is None else _message("assistant", wrap.format(solution), chat)
        examples.append({"prompt": question, "completion": answer, "nums": numbers, "target": target})
    return examples


def _problem(row: Row, row_number: int) -> tuple[list[int], int]:
    try:
        numbers = json.loads(row["nums"]) if isinstance(row["nums"], str) else row["nums"]
        whole = [int(number) for number in numbers]
        if not whole or whole != list(numbers):
            raise ValueError
        return whole, int(row["target"])
    except (TypeError, ValueError):
        raise TrainError(
            f"row {row_number}: `nums` must be a list of whole numbers and `target` one, "
            f"not {row['nums']!r} and {row['target']!r}"
        ) from None


def _given(rows: Sequence[Row], columns: Mapping[str, str], method: str) -> list[dict[str, Any]]:
    """The rows with their columns renamed as the trainers expect."""
    if method == "sft" and set(columns) == {"prompt"}:
        raise TrainError("sft learns from completions: say which column holds them, --config.dataset.completion_column")
    examples = []
    for number, row in enumerate(rows, 1):
        example = {name: row[column] for name, column in columns.items()}
        for name, value in example.items():
            if not isinstance(value, str | list) or not value:
                raise TrainError(f"row {number}: {columns[name]!r} is {value!r}; text (or messages) is needed")
        examples.append(_for_grpo(example, number) if method == "grpo" else example)
    return examples


def _for_grpo(example: dict[str, Any], number: int) -> dict[str, Any]:
    if "messages" in example:
        *before, last = example["messages"]
        if not before or last.get("role") != "assistant":
            raise TrainError(f"row {number}: a conversation for grpo ends with what the assistant should say")
        example = {"prompt": before, "completion": [last]}
    if "completion" not in example:
        raise TrainError(
            "grpo rewards right answers, and this data set has none: it needs `nums` and `target` (countdown), or "
            "prompts with a column of answers (--config.dataset.completion_column)"
        )
    answer = example["completion"]
    return {**example, "answer": answer if isinstance(answer, str) else answer[-1]["content"]}


def _message(role: str, text: str, chat: bool) -> Any:
    return [{"role": role, "content": text}] if chat else text


COUNTDOWN = {"nums", "target"}
ANSWERS = ("completion", "answer", "response")


def columns_of(available: Sequence[str], config: DatasetConfig) -> dict[str, str]:
    """The columns by the trainers' names: those configured, or the usual ones. Empty for countdown problems."""
    columns = {kind: getattr(config, f"{kind}_column") for kind in ("messages", "prompt", "completion", "text")}
    named = {kind: column for kind, column in columns.items() if column is not None}
    for kind, column in named.items():
        if column not in available:
            hint = did_you_mean(column, available)
            raise TrainError(
                f"config.dataset.{kind}_column: there is no column {column!r}.{hint} There are: {', '.join(available)}."
            )
    if not named and set(available) >= COUNTDOWN:
        return {}
    for kind in ("messages", "prompt", "text"):
        if kind in named or (not named.keys() - {"completion"} and kind in available):
            names = {kind: named.get(kind, kind)}
            answers = named.get("completion") or next((name for name in ANSWERS if name in available), None)
            return {**names, "completion": answers} if kind == "prompt" and answers is not None else names
    raise TrainError(
        f"the data set has the columns {', '.join(available)}, none of which is known: `prompt` with `completion`, "
        "`text`, `messages`, or `nums` with `target`; say which hold them, e.g. --config.dataset.prompt_column question"
    )
