"""Accuracy on questions against lm-eval's own, on the same files, in `make soak`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import learnscope as ls
from learnscope.model.outputs.questions import Asker, log_likelihoods
from learnscope.posttrain import read_task
from probes.outputs.asked import choices, model, prompts, tokenizer

MOST = 6
CHOICE = """
task: made_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - {{metric: acc}}
  - {{metric: acc_norm}}
  - {{metric: acc_bytes}}
"""
WORDS = """
task: made_words
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"], do_sample: false, max_gen_toks: {most}}}
filter_list:
  - name: stripped
    filter:
      - {{function: regex, regex_pattern: "(?s)^\\\\s*(.*?)\\\\s*$"}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match}}
"""


def written_to(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.soak
def test_it_agrees_with_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same share of right answers, and the same log-likelihood of every choice as far as float32 goes.

    Without lm-eval's cache of logits, which takes those of another place where the tokens of one question's context are
    another's context and the beginning of its choice (0.4.13).
    """
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    net = model(48)
    lm = HFLM(pretrained=net, tokenizer=tokenizer(), batch_size=1, max_length=48, logits_cache=False)
    asked = [{**row, "answer": "?"} for row in prompts()]
    requests = [
        type("Asked", (), {"args": (row["prompt"], {"until": ["\n\n"], "max_gen_toks": MOST})}) for row in asked
    ]
    said = lm.generate_until(requests, disable_tqdm=True)
    known = [{**row, "answer": text.strip() if n % 3 and text.strip() else "?"} for n, (row, text) in
             enumerate(zip(asked, said, strict=True))]  # fmt: skip
    files = {
        "made_choice": written_to(tmp_path / "made_choice.jsonl", choices(60)),
        "made_words": written_to(tmp_path / "made_words.jsonl", known),
    }
    (tmp_path / "choice.yaml").write_text(CHOICE.format(file=files["made_choice"]))
    (tmp_path / "words.yaml").write_text(WORDS.format(file=files["made_words"], most=MOST))
    found = lm_eval.simple_evaluate(
        lm, tasks=list(files), task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0, log_samples=True,
    )  # fmt: skip
    scores = {n["doc_id"]: [float(score) for score, _ in n["filtered_resps"]] for n in found["samples"]["made_choice"]}
    asker = Asker(net, tokenizer(), 48)
    for number, row in enumerate(choices(60)):
        own, _ = log_likelihoods(asker, [asker.pair(row["context"], " " + choice) for choice in row["choices"]])
        assert own == pytest.approx(scores[number], rel=1e-5)  # theirs in float32
    ids = torch.arange(8)[None]
    probe = ls.TaskAccuracy(tasks=[read_task(file) for file in files.values()], max_new_tokens=MOST)
    run = ls.audit(net, [{"input_ids": ids, "labels": ids}], probes=[probe], tokenizer=tokenizer(), strict=True)
    ours = {(row.scope, row.name): row.value for row in run.frame("TaskAccuracy").itertuples()}
    for name in ("acc", "acc_norm", "acc_bytes"):
        theirs = found["results"]["made_choice"][f"{name},none"]
        assert ours["made_choice", name] == theirs
        assert 0 < theirs < 1
    theirs = found["results"]["made_words"]["exact_match,stripped"]
    assert ours["made_words", "exact_match"] == theirs
    assert 0 < theirs < 1
