"""How deep an audit goes: planned passes beside those that run, what is given up first, and what never changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from learnscope.cli import main
from learnscope.core.moment import Moment
from learnscope.core.subject import Subject
from learnscope.model.robustness.attack import fgsm, gradient_at_input, pgd
from learnscope.model.robustness.ball import Threat, unit_ball
from learnscope.model.robustness.prompts import TOKEN_KINDS
from learnscope.model.robustness.target import find_target
from learnscope.posttrain import ModelAnalyzer, PosttrainError
from learnscope.posttrain.data import Batches
from learnscope.posttrain.planning.depth import (
    ENOUGH,
    FEWEST,
    MADE_UP,
    SHORTEST,
    STEPS,
    WANTED,
    WORK,
    Share,
    can_shorten,
    choose_depth,
    examples_of_text,
    shortened,
)
from learnscope.posttrain.planning.effort import OneExample, Passes, bit_passes, one_example, robustness_passes
from learnscope.posttrain.planning.estimate import (
    BY_METHOD,
    FIXED,
    INTEGER_SECONDS,
    INTEGERS,
    RERUN,
    ROUNDED,
    estimated,
    seconds_of,
    speeds,
    timed_passes,
    timed_settings,
)
from learnscope.posttrain.planning.levels import LEVELS
from learnscope.posttrain.planning.planner import Planner
from learnscope.probes.bits.bit_frontier import ALONE
from learnscope.probes.bits.bit_optimum import BitOptimum
from learnscope.probes.bits.bit_sensitivity import BitSensitivity
from learnscope.probes.bits.bit_widths import BitWidths
from learnscope.probes.robustness.prompt_perturbation import PromptPerturbation
from learnscope.store.memo import ResultCache
from learnscope.task import HuggingFaceTask
from probes.outputs import asked

TASK = HuggingFaceTask()
REAL = OneExample(operations=64 * (768 * 50257 + 2 * 7.1e6), outputs=64 * 50257, tokens=64)
"""A sequence of 64 tokens through a GPT-2 of two layers with its real vocabulary."""


def gpt2() -> Any:
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=60, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5, **ends)
    ).eval()


def tokens(rows: int, length: int, seed: int = 0) -> dict[str, Any]:
    ids = torch.randint(1, 60, (rows, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@contextmanager
def counting(model: Any) -> Iterator[list[int]]:
    """The number of examples in every call of the model."""
    calls: list[int] = []

    def count(_model: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        calls.append(len(kwargs["input_ids"]))

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def test_the_planned_passes_are_those_that_run() -> None:
    model, batch = gpt2(), tokens(8, 40)
    analyzer = ModelAnalyzer(model, progress=False)
    with counting(model) as calls, analyzer.session.sharing([batch]):
        analyzer.bit_width_analyzer.analyze_layer_sensitivity([batch], bits=ALONE, embeddings=True)
        alone = sum(calls)
        analyzer.bit_width_analyzer.find_frontier([batch])
    planned = 8 * bit_passes(model).forwards
    assert alone == 8 * (1 + 6 * len(ALONE)), "an embedding, positions, and two units in each of two blocks"
    # how many configurations are worth trying depends on the model
    assert 0.6 * planned <= sum(calls) <= 1.2 * planned
    for steps, transfer in ((10, 5), (5, 3)):
        model = gpt2()
        analyzer = ModelAnalyzer(model, progress=False)
        with counting(model) as calls:
            analyzer.robustness_analyzer.analyze([batch], examples=8, steps=steps, transfer_steps=transfer)
        planned = 8 * robustness_passes(steps, transfer).forwards
        assert 0.95 * planned <= sum(calls) <= 1.1 * planned


def test_prompts_are_planned_in_the_ways_that_they_can_be_changed() -> None:
    """All of them with a tokenizer, else only tokens, and none of inputs that are no tokens; as many as can differ."""
    reader, batch = asked.tokenizer(), tokens(8, 40)
    plain = robustness_passes(5, 3, ()).forwards
    for tokenizer, kinds in ((None, TOKEN_KINDS), (reader, PromptPerturbation.kinds)):
        model = asked.model()
        analyzer = ModelAnalyzer(model, tokenizer=tokenizer, progress=False)
        with counting(model) as calls:
            analyzer.robustness_analyzer.test_prompt_perturbations([batch], examples=8)
        planned = 8 * (robustness_passes(5, 3, kinds).forwards - plain)
        # of few words and letters, several levels change the same, which is run once
        assert sum(calls) == planned if tokenizer is None else planned / 2 < sum(calls) < planned
        depth = Planner(analyzer.session).depth(Batches([batch], {}))
        assert tuple(depth.kinds) == tuple(kinds)
        assert depth.robustness == robustness_passes(depth.steps, depth.transfer_steps, kinds)
    images = [(torch.rand(4, 3), torch.arange(4) % 2)]
    session = ModelAnalyzer(torch.nn.Linear(3, 2), progress=False).session
    assert Planner(session).depth(Batches(images, {})).kinds == ()


def test_operations_of_an_example_are_counted() -> None:
    model = gpt2()
    one = one_example(model, TASK, tokens(3, 20))
    blocks = sum(p.numel() for name, p in model.named_parameters() if ".h." in name and p.ndim == 2)
    attention = 2 * 2 * 20 * 16  # queries and keys, weights and values, of a token in two layers
    assert one == OneExample(20 * (blocks + 60 * 16 + attention), 20 * 60, 20)
    assert one.shortened(5).operations == one.operations / 4
    assert one.shortened(40) == one
    forward, back = Passes(plain=1).work(one), Passes(gradient=1).work(one)
    assert back >= 2 * forward > 0


def test_a_small_model_is_examined_on_all_that_is_wanted() -> None:
    model = gpt2()
    depth = choose_depth(model, one_example(model, TASK, tokens(1, 64)), 256)
    assert (depth.bits, depth.attacks, depth.steps) == (Share(WANTED), Share(WANTED), STEPS)
    assert depth.attacks.words(256, 64) == ""
    assert examples_of_text(one_example(model, TASK, tokens(1, 64))) == 256


def test_a_large_model_gives_up_tokens_then_steps_then_examples() -> None:
    model = gpt2()
    depth = choose_depth(model, REAL, 64)
    for share, passes, part in (
        (depth.bits, bit_passes(model, depth.bits.examples, depth.alone, depth.bits.searched), "bit_widths"),
        (depth.attacks, robustness_passes(depth.steps, depth.transfer_steps), "robustness"),
    ):
        # examples go only when tokens cannot
        assert share.examples >= (FEWEST[part] if share.tokens == SHORTEST else ENOUGH[part])
        assert SHORTEST <= share.tokens < 64
        fewest = share == Share(FEWEST[part], SHORTEST)  # which are examined whatever they take
        assert fewest or share.examples * passes.work(REAL.shortened(share.tokens)) <= WORK[part]
    assert depth.steps < STEPS
    huge = OneExample(1e3 * REAL.operations, REAL.outputs, 64)
    assert choose_depth(model, huge, 64).bits == Share(FEWEST["bit_widths"], SHORTEST)
    assert choose_depth(model, huge, 64).attacks == Share(FEWEST["robustness"], SHORTEST)
    assert FEWEST["bit_widths"] // 2 >= 16, "to judge on, also of a quick audit"
    assert choose_depth(model, huge, 3).attacks == Share(3, SHORTEST), "of three examples, all"
    whole = choose_depth(model, REAL, 64, thorough=True)
    assert (whole.bits, whole.attacks, whole.steps) == (Share(WANTED), Share(WANTED), STEPS)
    uncut = choose_depth(model, OneExample(REAL.operations, REAL.outputs, 0), 64)
    assert uncut.bits.tokens == uncut.attacks.tokens == 0


def test_more_examples_make_up_for_tokens_that_bits_give_up() -> None:
    """Of 128 tokens, 64 examples of 32 are examined, 48 of them to judge on, rather than 32 of 64 and 16 of them."""
    model, level = gpt2(), LEVELS["default"]

    def work(one: OneExample, share: Share) -> float:
        passes = bit_passes(model, share.examples, level.alone, share.searched, level.judged)
        return share.examples * passes.work(one.shortened(share.tokens))

    one = OneExample(1e9, 0, 128)
    fits = WORK["bit_widths"] / work(one, Share(MADE_UP, 32, level.searched))
    one = OneExample(0.9 * fits * 1e9, 0, 128)
    chosen = Share(MADE_UP, 32, level.searched)
    assert choose_depth(model, one, 256).bits == choose_depth(model, one, 64).bits == chosen
    assert work(one, chosen) <= WORK["bit_widths"] < work(one, replace(chosen, tokens=48)), "as long as can be"
    fewer = choose_depth(model, one, 40).bits
    assert (fewer.examples, fewer.searched) == (40, 10), "a quarter of them is searched on"
    assert work(one, fewer) <= WORK["bit_widths"] < work(one, replace(fewer, tokens=fewer.tokens * 4 // 3))
    whole = OneExample(one.operations / 100, 0, 128)
    assert choose_depth(model, whole, 256).bits == Share(WANTED), "nothing is given up, and so many are enough"
    large = OneExample(4 * one.operations, 0, 128)
    assert choose_depth(model, large, 256).bits.tokens == SHORTEST, "not so many are possible: as long as can be"
    assert FEWEST["bit_widths"] <= choose_depth(model, large, 256).bits.examples < MADE_UP


def test_more_examples_than_the_work_allows_are_counted_with_what_single_units_take_of_fewer() -> None:
    """The first 12 are run for every unit, which is little for each of 200 examples, and much for each of 40."""
    model, level = gpt2(), LEVELS["default"]
    one = OneExample(WORK["bit_widths"] / 40 / bit_passes(model, 40, level.alone).compared, 0, 128)
    found = choose_depth(model, one, 200, for_bits=200).bits
    assert 38 <= found.examples <= 40
    assert not found.tokens
    assert found.examples * bit_passes(model, found.examples, level.alone).work(one) <= WORK["bit_widths"]


def test_only_the_first_tokens_of_plain_texts_are_taken() -> None:
    plain = tokens(4, 40)
    assert can_shorten(TASK, [plain])
    made = shortened(TASK, [plain], Share(4, 16), {"reduced": "x"})
    assert isinstance(made, Batches)
    assert made.about == {"reduced": "x"}
    for name in ("input_ids", "attention_mask", "labels"):
        assert torch.equal(made[0][name], plain[name][:, :16])
    assert shortened(TASK, [plain], Share(4), {})[0] is plain
    padded = {**plain, "attention_mask": torch.tensor([[1] * 40, [1] * 9 + [0] * 31, [1] * 40, [1] * 40])}
    padded["labels"] = torch.where(padded["attention_mask"] == 1, plain["labels"], -100)
    assert can_shorten(TASK, [padded])
    answers = {**plain, "labels": torch.cat([torch.full((4, 30), -100), plain["labels"][:, 30:]], 1)}
    assert not can_shorten(TASK, [answers]), "only the end of each has targets"
    assert not can_shorten(TASK, [{**plain, "labels": torch.zeros(4, dtype=torch.int64)}]), "a class for each"
    assert not can_shorten(TASK, [(torch.rand(3, 4), torch.arange(3))])


def test_the_estimate_is_two_timed_passes_times_the_passes_planned() -> None:
    model = gpt2()
    ticks = iter([0.0, 2.0, 10.0, 13.0])
    assert timed_passes(model, TASK, tokens(2, 8), clock=lambda: next(ticks)) == {"plain": 2.0, "compared": 3.0}
    speed = speeds({"plain": 2.0, "compared": 3.0}, REAL, 4)
    assert seconds_of(Passes(plain=1), REAL, 4, speed) == pytest.approx(2.0), "what was timed is what is said of it"
    assert seconds_of(Passes(compared=1), REAL, 4, speed) == pytest.approx(3.0)
    assert seconds_of(Passes(plain=3, compared=2), REAL, 8, speed) == pytest.approx(2 * (3 * 2.0 + 2 * 3.0))
    gradient, plain = Passes(gradient=1).work(REAL), Passes(plain=1).work(REAL)
    assert seconds_of(Passes(gradient=1), REAL, 4, speed) == pytest.approx(2.0 * gradient / plain)
    depth = choose_depth(model, REAL, 64)
    parts = ("performance", "bit_widths", "robustness")
    planned = estimated(model, REAL, 64, depth, parts, speed, 1, performance=7.0)
    assert planned.forwards["performance"] == 64
    assert planned.seconds["performance"] == pytest.approx(FIXED["performance"] + 64 / 4 * 2.0 + 7.0)
    short = REAL.shortened(depth.bits.tokens)
    passes = bit_passes(model, depth.bits.examples, depth.alone, depth.bits.searched)
    compared = seconds_of(passes, short, depth.bits.examples, speed)
    integers = seconds_of(Passes(plain=INTEGERS), short, 1, speed)
    weights = sum(parameter.numel() for parameter in model.parameters())
    rounding = (ROUNDED + 3 * BY_METHOD) * weights / speed["plain"]
    assert planned.seconds["bit_widths"] == pytest.approx(
        FIXED["bit_widths"] + RERUN * compared + INTEGER_SECONDS + integers + rounding
    )
    fewer = estimated(model, REAL, 64, replace(depth, methods=1), parts, speed, 1, performance=7.0)
    saved = planned.seconds["bit_widths"] - fewer.seconds["bit_widths"]
    assert saved == pytest.approx(2 * BY_METHOD * weights / speed["plain"]), "a method that is left out takes no time"
    assert choose_depth(model, REAL, 64, quick=True).methods == 1
    assert planned.total == sum(planned.seconds.values())


def test_timing_takes_its_seconds_or_the_fewest_passes() -> None:
    speed = speeds({"plain": 1.0, "compared": 1.0}, REAL, 1)
    quick = timed_settings([(0.001, False), (0.002, True)], 0.2, REAL, speed)
    assert quick == pytest.approx(0.003 + 1.25 * 0.2 + 1.25 * 2.0)
    assert timed_settings([(3.0, False)], 0.2, REAL, speed) == pytest.approx(3.0 + 5 * 3.0), "so slow that five are few"


def test_the_estimate_stands_before_the_first_part_also_when_redirected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = gpt2()
    model.config.architectures = ["GPT2LMHeadModel"]
    model.save_pretrained(tmp_path / "m")
    command = ["audit", "--model_path", str(tmp_path / "m"), "--output_dir", str(tmp_path / "out"), "--length", "16"]
    assert main([*command, "--examples", "8", "--quick", "--parts", "performance"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = next(place for place, line in enumerate(lines) if line.startswith("m: about "))
    assert "from two timed passes: performance " in lines[said]
    started = next(place for place, line in enumerate(lines) if line.startswith("m: performance …"))
    assert said < started
    assert re.search(r"part 1 of 1, about \d+ s left", lines[started])


def test_a_quick_audit_has_its_share_of_the_work() -> None:
    model, level = gpt2(), LEVELS["quick"]
    quick, usual = choose_depth(model, REAL, 64, quick=True), choose_depth(model, REAL, 64)
    for part, passes in (
        ("bits", lambda depth: depth.bit_passes(model)),
        ("attacks", lambda depth: depth.robustness),
    ):
        work = [getattr(depth, part).examples * passes(depth).work(REAL.shortened(getattr(depth, part).tokens))
                for depth in (quick, usual)]  # fmt: skip
        assert work[0] < work[1]
    # a tenth of it needs neither the fewest examples nor, in full, the shortest ones
    tenth = OneExample(REAL.operations / 10, REAL.outputs // 10, 64)
    quick, usual = (choose_depth(model, tenth, 64, quick=quick, for_bits=64) for quick in (True, False))
    for name, share, most, passes in (
        ("bit_widths", "bits", level.bits, lambda depth: depth.bit_passes(model)),
        ("robustness", "attacks", level.share, lambda depth: depth.robustness),
    ):
        small, large = (getattr(depth, share).examples
                        * passes(depth).work(tenth.shortened(getattr(depth, share).tokens or 64))
                        for depth in (quick, usual))  # fmt: skip
        assert small <= most * WORK[name] < large <= WORK[name]
    assert quick.steps == usual.steps == 5
    assert choose_depth(model, one_example(model, TASK, tokens(1, 8)), 64, quick=True).steps == 5
    assert choose_depth(model, one_example(model, TASK, tokens(1, 8)), 64, for_bits=64).bits == Share(64)


def test_what_is_left_out_is_said_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With less work allowed, a small model is treated as a large one is."""
    model = gpt2()
    one = one_example(model, TASK, tokens(1, 48))
    planned = {"bit_widths": bit_passes(model, 20, LEVELS["default"].alone), "robustness": robustness_passes(5, 3)}
    for part, passes in planned.items():
        monkeypatch.setitem(WORK, part, 17.5 * passes.work(one.shortened(24)))
        monkeypatch.setitem(ENOUGH, part, 16)
        monkeypatch.setitem(FEWEST, part, 8)
    model.config.architectures = ["GPT2LMHeadModel"]
    model.save_pretrained(tmp_path / "m")
    command = ["audit", "--model_path", str(tmp_path / "m"), "--output_dir", str(tmp_path / "out"), "--length", "48"]
    assert main([*command, "--examples", "20", "--parts", "bit_widths", "robustness"]) == 0
    printed = capsys.readouterr().out
    bits, robustness = "the first 18 of 48 tokens of each", "17 of 20 examples, the first 24 of 48 tokens of each"
    assert f"m: bit widths: {bits}\n" in printed
    assert f"m: robustness: {robustness}, attacks of 5 steps, not 10\n" in printed
    assert "m: --thorough leaves none of that out, and takes about" in printed
    body = json.loads((tmp_path / "out" / "analysis_results.json").read_text())
    assert body["about"]["reduced"]["bit_widths"] == bits
    notes = body["bit_widths"]["sensitivity"]["notes"]
    assert (notes["examples"], notes["examples_given"], notes["reduced"]) == (12, 20, bits)
    assert notes["positions"] == 12 * 17
    attacks = body["robustness"]["attacks"]
    assert attacks["notes"]["reduced"].startswith(robustness)
    assert {row["labels"].get("steps") for row in attacks["rows"] if row["scope"] == "pgd"} == {1, 5}
    summary = (tmp_path / "out" / "summary_report.md").read_text()
    assert [summary.count(f"o save time: {each}") for each in (bits, robustness)] == [1, 1]
    assert "| 17 of 20 |" in summary
    assert "on 17 of 20 examples" in (tmp_path / "out" / "insights.md").read_text()
    assert re.search(r"searched on 5 and judged on 15 other examples", " ".join(printed.split()))
    assert body["bit_widths"]["exported"]["notes"]["reduced"] == "timed on one example of 18 tokens"


def test_damages_of_one_half_from_the_sums_of_all_are_those_of_running_it() -> None:
    """Padded batches, examples without a target, and documents in parts."""
    model = gpt2()
    first, second = tokens(5, 12), tokens(6, 9, seed=1)
    first["labels"] = first["labels"].clone()
    first["labels"][1] = -100
    first["example_ids"], second["example_ids"] = torch.tensor([1, 2, 3, 3, 4]), torch.tensor([5, 5, 6, 7, 8, 9])

    def moment() -> Moment:
        return Moment(step=0, phase="audit", source="audit", subject=Subject(model, task=TASK, holdout=[first, second]))

    alone, shared = moment(), moment()
    shared.subject.memo = ResultCache()
    probe = BitOptimum()
    BitSensitivity().measure(shared)
    BitWidths().measure(shared)
    with counting(model) as calls:
        found = probe.single_units(shared, "search")
    assert sum(calls) == (5 + 6) * 4, "only what was not measured yet: 3 bits of four units, on two batches"
    assert len(calls) == 2 * 2, "the two units of a block together"
    assert len(found) == 4 * 4
    for (unit, width), scores in found.items():
        expected = probe.variant(alone, {unit: width}, "search")
        assert scores["kl"] == pytest.approx(expected["kl"], rel=1e-4), (unit, width)
        assert scores["sums"]["positions"] == expected["sums"]["positions"]
    fresh, after = (dict(probe.measure(each).notes) for each in (moment(), shared))
    # the units of a block ran in batches of another size: other kernels may round their float32 outputs otherwise
    assert fresh.pop("expected") == pytest.approx(after.pop("expected"), rel=1e-4)
    assert fresh == after, "the same choice, whatever was measured before"


def test_attacks_that_share_their_first_gradient_are_the_same_bit_for_bit() -> None:
    model = gpt2()
    target = find_target(model, TASK, tokens(4, 10))
    start = gradient_at_input(model, TASK, target)
    for epsilon in (0.1, 0.5):
        ball = unit_ball(target, Threat("l2", "token", "relative"), None).of(epsilon)
        for attack, options in ((fgsm, {}), (pgd, {"steps": 3}), (pgd, {"steps": 2, "restarts": 2})):
            generators = (torch.Generator().manual_seed(0) for _ in range(2))
            more: list[dict[str, Any]] = [{}, {}] if attack is fgsm else [{"generator": g} for g in generators]
            own: Any = attack(model, TASK, target, ball, **options, **more[0])  # type: ignore[operator]
            given: Any = attack(model, TASK, target, ball, **options, **more[1], start=start)  # type: ignore[operator]
            assert torch.equal(own.delta, given.delta)
            assert (own.zero_gradients, own.gradients) == (given.zero_gradients, given.gradients)


def test_a_wrong_token_is_named_before_anything_is_counted() -> None:
    batch = tokens(2, 5)
    batch["input_ids"][0, 0] = 60
    with pytest.raises(PosttrainError, match="batch 0 has token 60"):
        ModelAnalyzer(gpt2(), progress=False).analyze_robustness([batch])
