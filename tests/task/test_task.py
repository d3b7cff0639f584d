"""Losses against torch's and transformers' own; batches of every shape; what is refused."""

import collections
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from learnscope.task import (
    IGNORE,
    DictTask,
    HuggingFaceTask,
    PairTask,
    Task,
    TupleTask,
    correct,
    describe,
    predictions,
    task_for,
    unwrap,
)

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

B, T, VOCAB = 3, 7, 50
BERT = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
    "num_labels": 4,
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def bert(head: str, **more: Any) -> nn.Module:
    model: nn.Module = getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**{**BERT, **more}))
    return model.eval()


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=VOCAB, n_positions=16)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model.eval()


def t5() -> nn.Module:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1, "vocab_size": VOCAB}
    model: nn.Module = transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0, **sizes))
    return model.eval()


def tokens() -> dict[str, Tensor]:
    """Three texts of 7, 5 and 3 tokens, padded on the right, with labels that are -100 there."""
    ids = torch.randint(1, VOCAB, (B, T))
    mask = (torch.arange(T) < torch.tensor([[7], [5], [3]])).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORE)}


def same(task: Task, model: nn.Module, batch: Any, own: Tensor, positions: int) -> None:
    """The task's mean loss is the model's own, by both ways of computing it."""
    found = task.outputs(model, batch)
    assert found.losses is not None
    assert found.targets is not None
    assert len(found.logits) == len(found.targets) == len(found.losses) == len(found.example) == positions
    torch.testing.assert_close(found.losses.mean(), own)
    torch.testing.assert_close(task.loss(model, batch), own)
    assert found.losses.dtype == torch.float32


def test_causal_language_model() -> None:
    model, batch = gpt2(), tokens()
    batch["labels"][0, 2] = IGNORE
    same(HuggingFaceTask(), model, batch, model(**batch).loss, 6 + 4 + 2 - 1)
    found = HuggingFaceTask().outputs(model, batch)
    assert found.example.bincount().tolist() == [5, 4, 2]


def test_causal_language_model_without_labels_predicts_its_inputs() -> None:
    model, batch = gpt2(), tokens()
    own = model(**batch).loss
    same(HuggingFaceTask(), model, {k: batch[k] for k in ("input_ids", "attention_mask")}, own, 12)
    whole = {"input_ids": batch["input_ids"]}
    same(HuggingFaceTask(), model, whole, model(**whole, labels=batch["input_ids"]).loss, B * (T - 1))


def test_padding_never_counts_even_where_labels_do_not_say_so() -> None:
    model, batch = gpt2(), tokens()
    own = model(**batch).loss
    same(HuggingFaceTask(), model, {**batch, "labels": batch["input_ids"]}, own, 12)
    left = {key: value.flip(1) for key, value in {**batch, "labels": batch["input_ids"]}.items()}
    found = HuggingFaceTask().outputs(model, left)
    assert found.example.bincount().tolist() == [6, 4, 2]  # nothing is predicted from padding either


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, lambda model: model])
def test_adapted_and_wrapped_language_model(wrap: Callable[[nn.Module], nn.Module]) -> None:
    adapted = peft.get_peft_model(gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    for parameter in adapted.parameters():
        parameter.data += 0.01
    adapted.eval()
    batch = tokens()
    own = adapted(**batch).loss
    model = wrap(adapted)
    assert type(unwrap(model)).__name__ == "GPT2LMHeadModel"
    with torch.compiler.set_stance("force_eager"):
        same(HuggingFaceTask(), model, {**batch, "idx": torch.arange(B)}, own, 12)


def test_prompt_tuning_has_virtual_tokens_in_front() -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model, batch = peft.get_peft_model(gpt2(), config).eval(), tokens()
    same(HuggingFaceTask(), model, batch, model(**batch).loss, 7 + 5 + 3)


def test_masked_language_model_and_token_classifier_are_not_shifted() -> None:
    batch = tokens()
    batch["labels"] = batch["labels"].masked_fill(torch.rand(B, T) < 0.5, IGNORE)
    counted = int((batch["labels"] != IGNORE).sum())
    model = bert("MaskedLM")
    same(HuggingFaceTask(), model, batch, model(**batch).loss, counted)
    batch["labels"] = torch.where(batch["labels"] == IGNORE, IGNORE, batch["labels"] % 4)
    model = bert("TokenClassification")
    same(HuggingFaceTask(), model, batch, model(**batch).loss, counted)


def test_without_labels_only_real_tokens_remain() -> None:
    batch = tokens()
    del batch["labels"]
    found = HuggingFaceTask().outputs(bert("MaskedLM"), batch)
    assert found.targets is None
    assert found.losses is None
    assert list(found.logits.shape) == [15, VOCAB]
    with pytest.raises(ValueError, match="needs targets"):
        HuggingFaceTask().loss(bert("MaskedLM"), batch)


def test_encoder_decoder() -> None:
    model, batch = t5(), tokens()
    batch["labels"] = torch.randint(1, VOCAB, (B, 4))
    batch["labels"][1, 2:] = IGNORE
    same(HuggingFaceTask(), model, batch, model(**batch).loss, 10)
    given = {**batch, "decoder_input_ids": torch.randint(1, VOCAB, (B, 4))}
    same(HuggingFaceTask(), model, given, model(**given).loss, 10)


def test_an_encoder_decoder_family_s_token_classifier_has_no_decoder() -> None:
    model = transformers.T5ForTokenClassification(t5().config).eval()
    batch = tokens()
    batch["labels"] = torch.where(batch["labels"] == IGNORE, IGNORE, batch["labels"] % 2)
    same(HuggingFaceTask(), model, batch, model(**batch).loss, 15)


@pytest.mark.parametrize(
    ("labels", "more"),
    [
        (torch.tensor([0, 3, 1]), {}),
        (torch.tensor([0.5, -1.0, 2.0]), {"num_labels": 1}),
        (torch.tensor([0, 3, 1]), {"num_labels": 1}),
        (torch.tensor([[0.0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]), {}),
    ],
)
def test_sequence_classifier_follows_its_problem_type(labels: Tensor, more: dict[str, Any]) -> None:
    model, batch = bert("SequenceClassification", **more), {**tokens(), "labels": labels}
    own = model(**{**batch, "labels": labels.float() if more else labels}).loss
    same(HuggingFaceTask(), model, batch, own, B)


def test_the_model_never_sees_labels_ids_or_unknown_keys() -> None:
    seen: list[dict[str, Any]] = []

    class ForTokenClassification(nn.Module):
        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> SimpleNamespace:
            seen.append({"labels": labels})
            return SimpleNamespace(logits=F.one_hot(input_ids, VOCAB).float())

    batch = {**tokens(), "idx": torch.arange(B), "group": ["a", "b", "a"], "text": ["…"] * B}
    task = HuggingFaceTask()
    assert task.outputs(ForTokenClassification(), batch).targets is not None
    assert seen == [{"labels": None}]
    ids = task.ids(batch)
    assert ids is not None
    assert ids.tolist() == [0, 1, 2]
    assert task.groups(batch) == ["a", "b", "a"]
    assert task.ids(tokens()) is None
    with pytest.raises(TypeError, match="integers"):
        task.ids({"id": ["a", "b"]})


def test_a_forward_that_takes_anything_gets_no_ids_either() -> None:
    seen: list[str] = []

    class ForTokenClassification(nn.Module):
        def forward(self, input_ids: Tensor, **rest: Any) -> Tensor:
            seen.extend(rest)
            return F.one_hot(input_ids, VOCAB).float()

    extra = {"example_id": torch.arange(B), "group": torch.zeros(B), "text": ["…"] * B, "bias": torch.ones(1)}
    HuggingFaceTask().outputs(ForTokenClassification(), {**tokens(), **extra})
    assert seen == ["attention_mask", "bias"]


@pytest.mark.parametrize("form", ["dict", "tuple", "object"])
def test_outputs_as_dictionary_tuple_or_object(form: str) -> None:
    class Any2Classification(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            logits = F.one_hot(input_ids, VOCAB).float()
            if form == "tuple":
                return torch.tensor(0.0), logits
            return {"logits": logits} if form == "dict" else SimpleNamespace(logits=logits)

    assert HuggingFaceTask().logits(Any2Classification(), tokens()).shape == (B, T, VOCAB)


def test_shift_must_be_known() -> None:
    class Mine(nn.Module):
        def forward(self, input_ids: Tensor) -> Tensor:
            return F.one_hot(input_ids, VOCAB).float()

    batch = tokens()
    with pytest.raises(TypeError, match=r"HuggingFaceTask\(shift=True\)"):
        HuggingFaceTask().outputs(Mine(), batch)
    assert len(HuggingFaceTask(shift=True).outputs(Mine(), batch).logits) == 12
    assert len(HuggingFaceTask(shift=False).outputs(Mine(), batch).logits) == 15


class Linear(nn.Module):
    """Ten features to `n` outputs; to a plain vector if `n` is 0."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.map = nn.Linear(10, max(n, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.map(x)
        return out if self.n else out.squeeze(-1)


X = torch.arange(40.0).reshape(4, 10).sin()
CLASSES = torch.tensor([2, 0, 1, 2])
YES = torch.tensor([1, 0, 1, 1])


@pytest.mark.parametrize("batch", [(X, CLASSES), [X, CLASSES], (X, CLASSES[:, None]), (X, CLASSES.int())])
def test_tuples(batch: Any) -> None:
    model = Linear(3)
    same(task_for(batch), model, batch, F.cross_entropy(model(X), CLASSES), 4)


def test_tuples_with_ids_and_without_targets() -> None:
    task = TupleTask()
    ids = task.ids((X, CLASSES, torch.tensor([9, 8, 7, 6])))
    assert ids is not None
    assert ids.tolist() == [9, 8, 7, 6]
    for batch in ((X,), X):
        found = task.outputs(Linear(3), batch)
        assert (found.targets, found.losses, task.ids(batch)) == (None, None, None)
        assert found.example.tolist() == [0, 1, 2, 3]


def test_tuples_with_groups() -> None:
    model, ids, groups = Linear(3), torch.tensor([9, 8, 7, 6]), torch.tensor([1, 0, 1, 1])
    for named in (groups, groups.bool(), ["a", "b", "a", "a"], ("a", "b", "a", "a")):
        batch = (X, CLASSES, ids, named)
        task = task_for(batch)
        same(task, model, batch, F.cross_entropy(model(X), CLASSES), 4)
        assert task.groups(batch) is named
        part = task.take(batch, 3)
        assert [len(item) for item in part] == [3, 3, 3, 3]
        assert list(part[3]) == list(named[:3])
    assert TupleTask().groups((X, CLASSES, ids)) is None
    assert TupleTask().groups(X) is None


def test_four_that_are_something_else_are_refused() -> None:
    """Weights or a mask must not be read as ids or groups."""
    ids, weights, mask = torch.tensor([9, 8, 7, 6]), torch.ones(4), torch.ones(4, dtype=torch.bool)
    wrong = [(ids, weights), (mask, ids), (ids, X.long()), (ids, "abcd"), (weights, ids), (ids, ["a"]), (ids, ids, ids)]
    for rest in wrong:
        with pytest.raises(TypeError, match="no built-in task"):
            task_for((X, CLASSES, *rest))


def test_ignored_targets_are_left_out() -> None:
    model, targets = Linear(3), torch.tensor([2, IGNORE, 1, IGNORE])
    same(TupleTask(), model, (X, targets), F.cross_entropy(model(X), targets), 2)
    assert TupleTask().outputs(model, (X, targets)).example.tolist() == [0, 2]


@pytest.mark.parametrize("outputs", [0, 1])
@pytest.mark.parametrize("targets", [YES, YES[:, None], YES.bool(), YES.to(torch.uint8)])
def test_a_single_logit_is_a_yes_or_no(outputs: int, targets: Tensor) -> None:
    model = Linear(outputs)
    own = F.binary_cross_entropy_with_logits(model(X).reshape(-1), YES.float())
    same(TupleTask(), model, (X, targets), own, 4)
    with pytest.raises(ValueError, match="single logit"):
        TupleTask().outputs(model, (X, CLASSES))


@pytest.mark.parametrize("outputs", [0, 1])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_regression_never_broadcasts(outputs: int, shape: tuple[int, ...]) -> None:
    model, values = Linear(outputs), torch.tensor([0.5, 1.0, -2.0, 0.0])
    own = F.mse_loss(model(X).reshape(-1), values)
    same(TupleTask(), model, (X, values.reshape(shape)), own, 4)


def test_regression_with_several_outputs() -> None:
    model, values = Linear(3), X[:, :3]
    same(TupleTask(), model, (X, values), F.mse_loss(model(X), values), 4)


@pytest.mark.parametrize("targets", [X[:, :2], torch.rand(4), CLASSES[:3], torch.zeros(4, 5).long()])
def test_shapes_that_do_not_fit_are_refused(targets: Tensor) -> None:
    with pytest.raises(ValueError, match="do not fit logits"):
        TupleTask().outputs(Linear(3), (X, targets))


def test_images_have_channels_second() -> None:
    x, targets = torch.randn(2, 1, 5, 5), torch.randint(0, 5, (2, 5, 5))
    model = nn.Conv2d(1, 5, 1)
    same(TupleTask(), model, (x, targets), F.cross_entropy(model(x), targets), 50)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_of_half_precision_logits_are_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(64, 1000).to(dtype)
    targets = torch.randint(0, 1000, (64,))
    each = Task().losses(logits, targets)
    assert each.dtype == torch.float32
    torch.testing.assert_close(each, F.cross_entropy(logits.float(), targets, reduction="none"))
    assert Task().losses(logits.double(), targets).dtype == torch.float64
    assert Task().losses(logits[:, 0], torch.rand(64)).dtype == torch.float32


def test_pairs_with_two_logits_and_with_one() -> None:
    class Compare(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.score = Linear(n)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            out: Tensor = self.score(a - b)
            return out

    batch = {"img1": X, "img2": X.flip(0), "winner": YES}
    task = task_for(batch)
    assert isinstance(task, PairTask)
    two = Compare(2)
    same(task, two, batch, F.cross_entropy(two(X, X.flip(0)), YES), 4)
    for n in (0, 1):
        one = Compare(n)
        z = one(X, X.flip(0)).reshape(-1)
        for winner in (YES, YES.float(), YES[:, None]):
            own = F.binary_cross_entropy_with_logits(z, YES.float())
            same(task, one, {**batch, "winner": winner}, own, 4)
        assert predictions(task.logits(one, batch)).tolist() == (z > 0).long().tolist()
    assert task.outputs(two, {"img1": X, "img2": X}).targets is None
    with pytest.raises(ValueError, match="0 or 1"):
        task.targets({"winner": torch.tensor([0.5])})


def test_plain_dictionaries() -> None:
    model, batch = Linear(3), {"x": X, "y": CLASSES, "id": [4, 5, 6, 7]}
    task = task_for(batch)
    same(task, model, batch, F.cross_entropy(model(X), CLASSES), 4)
    ids = task.ids(batch)
    assert ids is not None
    assert ids.tolist() == [4, 5, 6, 7]
    named = DictTask(inputs="signal", targets=None)
    assert named.outputs(model, {"signal": X}).losses is None


@dataclass
class Scene:
    pixels: Tensor
    label: Tensor
    caption: list[str]


def test_a_task_of_three_lines() -> None:
    class SceneTask(Task):
        def logits(self, model: nn.Module, batch: Scene) -> Tensor:
            out: Tensor = model(batch.pixels)
            return out

        def targets(self, batch: Scene) -> Tensor:
            return batch.label

    model, scene, task = Linear(3), Scene(X, CLASSES, list("abcd")), SceneTask()
    same(task, model, scene, F.cross_entropy(model(X), CLASSES), 4)
    part = task.take(scene, 3)
    assert (task.size(part), part.caption, scene.caption) == (3, ["a", "b", "c"], ["a", "b", "c", "d"])
    assert task.to(scene, "meta").pixels.device.type == "meta"


Point = collections.namedtuple("Point", ["x", "y"])


def test_take_and_to_keep_structure_and_leave_the_batch_alone() -> None:
    encoding = transformers.BatchEncoding({**tokens(), "text": ["a", "b", "c"], "count": torch.tensor(15)})
    task = task_for(encoding)
    part = task.take(encoding, 2)
    assert type(part) is transformers.BatchEncoding
    assert (len(part["input_ids"]), part["text"], part["count"].item()) == (2, ["a", "b"], 15)
    assert (task.size(encoding), task.size(part), encoding["text"]) == (3, 2, ["a", "b", "c"])
    moved = task.to(encoding, "meta")
    assert type(moved) is transformers.BatchEncoding
    assert moved["labels"].device.type == "meta"
    assert encoding["labels"].device.type == "cpu"
    nested = ({"a": X, "b": [X, (X, None)]}, Point(X, CLASSES))
    cut = Task().take(nested, 2)
    assert [len(cut[0]["a"]), len(cut[0]["b"][0]), len(cut[0]["b"][1][0]), len(cut[1].y)] == [2, 2, 2, 2]
    assert type(cut[1]) is Point
    assert Task().take(X, 99).shape == X.shape
    with pytest.raises(ValueError, match="at least one"):
        Task().take(X, 0)


@given(st.integers(1, 4))
def test_a_taken_batch_gives_the_first_examples_losses(n: int) -> None:
    model, batch, task = Linear(3), (X, CLASSES), TupleTask()
    whole, part = task.outputs(model, batch), task.outputs(model, task.take(batch, n))
    assert whole.losses is not None
    assert part.losses is not None
    torch.testing.assert_close(part.losses, whole.losses[:n])


def test_gradients_flow_also_per_example_under_vmap() -> None:
    model, task = Linear(3), TupleTask()
    targets = torch.tensor([2, IGNORE, 1, 0])
    kept = torch.tensor([0, 2, 3])
    losses = [task.loss(model, (X[i : i + 1], targets[i : i + 1])) for i in kept.tolist()]
    wanted = [torch.autograd.grad(loss, model.map.weight)[0] for loss in losses]

    def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        class Call(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = torch.func.functional_call(model, weights, (x,))
                return out

        return task.loss(Call(), (x[None], y[None]))

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    each = torch.func.vmap(torch.func.grad(one), (None, 0, 0))
    grads = each(weights, X[kept], targets[kept])
    torch.testing.assert_close(grads["map.weight"], torch.stack(wanted))


def test_nan_at_a_padded_position_stays_there() -> None:
    logits = torch.randn(4, 3)
    logits[1] = float("nan")
    leaf = logits.clone().requires_grad_()

    class Fixed(Task):
        def logits(self, model: nn.Module, batch: Tensor) -> Tensor:
            return leaf

        def targets(self, batch: Tensor) -> Tensor:
            return torch.tensor([0, IGNORE, 1, 2])

    loss = Fixed().loss(nn.Identity(), X)
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad).all()


def test_flags_and_grad_mode_are_left_alone() -> None:
    model = nn.Sequential(nn.Dropout(0.5), Linear(3))
    model[1].eval()
    with torch.no_grad():
        found = TupleTask().outputs(model, (X, CLASSES))
        assert not torch.is_grad_enabled()
    assert not found.logits.requires_grad
    assert TupleTask().outputs(model, (X, CLASSES)).logits.requires_grad
    assert [module.training for module in model] == [True, False]


def test_predictions_and_correct() -> None:
    assert predictions(torch.tensor([[1.0, 2], [3, 0]])).tolist() == [1, 0]
    assert predictions(torch.tensor([0.3, -0.3])).tolist() == [1, 0]
    assert correct(torch.tensor([[0.3], [-0.3]]), torch.tensor([1, 1])).tolist() == [True, False]
    with pytest.raises(TypeError, match="regression"):
        correct(torch.rand(2), torch.rand(2))


@pytest.mark.parametrize("batch", [(X[:0], CLASSES[:0]), {"x": X[:0], "y": CLASSES[:0]}])
def test_an_empty_batch_is_refused(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"empty.*Tensor\[0, 10\]"):
        task_for(batch).outputs(Linear(3), batch)


@pytest.mark.parametrize("batch", ["text", {"a": X}, (X, "label"), (X, CLASSES[:2]), (X,) * 4, [], None])
def test_an_unknown_batch_is_described_with_what_to_write(batch: Any) -> None:
    with pytest.raises(TypeError) as caught:
        task_for(batch, nn.Linear(1, 1))
    assert describe(batch) in str(caught.value)
    assert "class MyTask(learnscope.Task)" in str(caught.value)


def test_missing_pieces_are_named() -> None:
    with pytest.raises(TypeError, match="logits"):
        Task().outputs(Linear(3), X)
    with pytest.raises(TypeError, match="override size"):
        Task().size(["a", "b"])

    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "no"

    with pytest.raises(TypeError, match="no logits"):
        TupleTask().logits(Nothing(), X)
