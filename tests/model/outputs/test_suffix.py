"""Runs that begin after a changed block, against full runs of the changed model, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.blocks import find_blocks
from learnscope.model.outputs.suffix import Suffix
from learnscope.model.weights.swap import swapped

Run = Callable[[Any], Tensor]


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 40, shape, generator=torch.Generator().manual_seed(seed))


def masked(length: int, *lengths: int) -> dict[str, Tensor]:
    """Ragged texts, padded on the right."""
    mask = torch.arange(length)[None] < torch.tensor(lengths)[:, None]
    return {"input_ids": tokens(len(lengths), length).where(mask, 0), "attention_mask": mask.long()}


def language_model(kind: str, attention: str) -> tuple[nn.Module, list[Any]]:
    import transformers as t

    sizes = {"vocab_size": 40, "attn_implementation": attention, "pad_token_id": 0}
    torch.manual_seed(0)
    batches: list[Any] = [masked(7, 7, 4, 2), masked(5, 5, 3)]
    if kind == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(n_layer=3, n_head=2, n_embd=16, n_positions=16, **sizes)), batches
    if kind == "llama":
        shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
        return t.LlamaForCausalLM(t.LlamaConfig(**shape, num_key_value_heads=2, **sizes)), batches
    if kind == "bert":
        shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
        return t.BertForMaskedLM(t.BertConfig(**shape, **sizes)), batches
    if kind == "t5":
        sizes.pop("attn_implementation")
        config = t.T5Config(d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0, **sizes)
        return t.T5ForConditionalGeneration(config), [
            {**batch, "decoder_input_ids": tokens(len(batch["input_ids"]), 4, seed=1)} for batch in batches
        ]
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    vit = t.ViTConfig(**shape, image_size=8, patch_size=4, num_labels=5, attn_implementation=attention)
    return t.ViTForImageClassification(vit), [{"pixel_values": torch.randn(2, 3, 8, 8)} for _ in range(2)]


class Residual(nn.Module):
    """Blocks that write into their input, which would spoil what is kept if it were not copied."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        for layer in self.layers:
            x = layer(x).add_(x).relu_()
            x += 1
        return self.head(x.t().contiguous().t())


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        for p in self.parameters():
            nn.init.normal_(p, std=0.2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.encoder(x, src_key_padding_mask=mask)  # type: ignore[no-any-return]


def plain_model(kind: str) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(1)
    if kind == "encoder":
        hidden = torch.arange(5)[None] >= torch.tensor([5, 3, 4])[:, None]
        return Encoder(), [{"x": torch.randn(3, 5, 8), "mask": hidden} for _ in range(2)]
    if kind == "residual":
        return Residual(), [{"x": torch.randn(4, 6)} for _ in range(2)]
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    return net, [{"input": torch.randn(4, 6)} for _ in range(2)]


MODELS = [(kind, attention) for kind in ("gpt2", "llama", "bert", "vit") for attention in ("sdpa", "eager")]
MODELS += [("t5", "own"), ("encoder", "own"), ("residual", "own"), ("sequential", "own")]


def made(kind: str, attention: str) -> tuple[nn.Module, list[Any], Run]:
    model, batches = plain_model(kind) if attention == "own" and kind != "t5" else language_model(kind, attention)

    def run(batch: Any) -> Tensor:
        output = model(**batch)
        return output if isinstance(output, Tensor) else output.logits

    return model, batches, run


def recorded(model: nn.Module, batches: list[Any], run: Run) -> tuple[Suffix, list[Tensor]]:
    suffix = Suffix(model)
    with torch.no_grad(), guard(model):
        outputs = suffix.record(run, batches)
        suffix.check(lambda: run(batches[0]), outputs[0])
    return suffix, outputs


def calls_of(model: nn.Module, count: dict[str, int]) -> None:
    """Count calls of every block, by wrapping what is inside it."""
    for name, block in find_blocks(model).items():
        leaf = next((m for m in block.modules() if isinstance(m, nn.Linear) or "Conv1D" in type(m).__name__), block)
        leaf.register_forward_pre_hook(lambda *_, name=name: count.update({name: count.get(name, 0) + 1}))


@pytest.mark.parametrize(("kind", "attention"), MODELS)
def test_a_run_after_a_changed_block_is_a_full_run_to_the_bit(kind: str, attention: str) -> None:
    model, batches, run = made(kind, attention)
    model.train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    suffix, outputs = recorded(model, batches, run)
    assert suffix.reason is None
    blocks = list(find_blocks(model))
    assert len(blocks) >= 3
    assert any(suffix._outputs.values())
    for place, block in enumerate(blocks):
        name, parameter = next((n, p) for n, p in model.named_parameters() if n.startswith(f"{block}.") and p.ndim > 1)
        parameter.data.mul_(1.25).add_(0.01)
        with torch.no_grad(), guard(model):
            with suffix.after([name]):
                short = [run(batch) for batch in batches]
                assert "forward" in find_blocks(model)[blocks[0]].__dict__ or place == 0
            full = [run(batch) for batch in batches]
        parameter.data.copy_(before[name])
        assert suffix.begins_at([name]) == place
        for a, b, own in zip(short, full, outputs, strict=True):
            assert torch.equal(a, b)
            assert not torch.equal(a, own)
    assert all(module.training for module in model.modules())
    assert not any("forward" in module.__dict__ or module._forward_hooks for module in model.modules())


def test_earlier_blocks_do_not_run() -> None:
    model, batches, run = made("gpt2", "sdpa")
    suffix, _ = recorded(model, batches, run)
    counted: dict[str, int] = {}
    calls_of(model, counted)
    with torch.no_grad(), suffix.after(["transformer.h.2.mlp.c_fc.weight", "transformer.h.1.attn.c_attn.weight"]):
        for batch in batches:
            run(batch)
    assert counted == {"transformer.h.1": 2, "transformer.h.2": 2}


def test_embeddings_and_tied_weights_run_in_full() -> None:
    model, batches, run = made("gpt2", "sdpa")
    suffix, _ = recorded(model, batches, run)
    assert suffix.begins_at(["transformer.wte.weight"]) == suffix.begins_at(["transformer.ln_f.weight"]) == 0
    blocks = model.get_submodule("transformer.h")
    blocks[2].mlp.c_fc.weight = blocks[1].mlp.c_fc.weight  # type: ignore[index,union-attr]
    assert recorded(model, batches, run)[0].begins_at(["transformer.h.1.mlp.c_fc.weight"]) == 1
    blocks[1].mlp.c_fc.weight.data = blocks[0].mlp.c_fc.weight.data  # type: ignore[index,union-attr]
    assert recorded(model, batches, run)[0].begins_at(["transformer.h.1.mlp.c_fc.weight"]) == 0


class Odd(nn.Module):
    """Stacks whose blocks cannot be left out."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        if self.way == "looped":  # every block twice: a second turn of block 0 comes after block 2
            for layer in [*self.layers, *self.layers]:
                x = layer(x).tanh()
        elif self.way == "early exit":
            for layer in self.layers[: 2 if len(x) > 2 else 3]:
                x = layer(x)
        else:
            for layer in self.layers:
                x = layer(x)
        return x


class Leaves(nn.Module):
    """A block that leaves its output in a shared place, where the next one looks."""

    def __init__(self, place: dict[str, Any]) -> None:
        super().__init__()
        self.linear, self.place = nn.Linear(4, 4), place

    def forward(self, x: Tensor) -> Any:
        x = self.linear(x)
        self.place["before"] = x + self.place.get("before", 0)
        return x + self.place["before"]


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return {"x": self.linear(x["x"] if isinstance(x, dict) else x), "more": object()}


class Reading(nn.Module):
    """Starts every forward with an empty place that its blocks fill."""

    def __init__(self) -> None:
        super().__init__()
        self.place: dict[str, Any] = {}
        self.layers = nn.ModuleList(Leaves(self.place) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        self.place.clear()
        for layer in self.layers:
            x = layer(x)
        return x


def test_what_cannot_be_cut_runs_in_full_and_says_why() -> None:
    batches = [torch.randn(3, 4), torch.randn(2, 4)]
    holding = nn.Sequential(Holding(), Holding())
    cases: list[tuple[nn.Module, Run, str]] = [
        (looped := Odd("looped"), looped, "layers.0 runs 2 times in a forward"),
        (early := Odd("early exit"), early, "layers.2 runs 0 times in a forward"),
        (reading := Reading(), reading, "its outputs change when some of its blocks do not run"),
        (holding, lambda x: holding(x)["x"], "0 returns a object, which cannot be recorded"),
        (linear := nn.Bilinear(4, 4, 2), lambda x: linear(x, x), "its blocks are not known"),
        (twice := Odd("plain"), lambda x: twice(x) + twice(x), "layers.0 runs 2 times in a forward"),
    ]
    for model, run, reason in cases:
        suffix, outputs = recorded(model, batches, run)
        assert suffix.reason == reason
        assert not suffix._outputs
        name = next(name for name, _ in model.named_parameters())
        with torch.no_grad(), suffix.after([name]):
            again = [run(batch) for batch in batches]
        assert all(torch.equal(a, b) for a, b in zip(again, outputs, strict=True))
        assert not any("forward" in module.__dict__ for module in model.modules())


def test_errors_and_other_batches_leave_no_trace() -> None:
    model, batches, run = made("llama", "sdpa")
    own = model.get_submodule("model.layers.0")
    mine = own.forward
    own.forward = mine  # type: ignore[method-assign]  # an own forward on the instance, as wrappers leave it
    suffix, _ = recorded(model, batches, run)
    changed = ["model.layers.2.mlp.up_proj.weight"]
    with pytest.raises(RuntimeError, match="ended before all batches"), torch.no_grad(), suffix.after(changed):
        run(batches[0])
    with pytest.raises(RuntimeError, match="more often than it was recorded"), torch.no_grad(), suffix.after(changed):
        for batch in [*batches, batches[0]]:
            run(batch)
    with pytest.raises(KeyError, match="mine"), suffix.after(changed):
        raise KeyError("mine")
    assert own.__dict__["forward"] is mine
    assert "forward" not in model.get_submodule("model.layers.1").__dict__
    assert model.config.use_cache  # type: ignore[union-attr]


class Whispering(nn.Module):
    """Six blocks of which one reads what another, earlier one has left behind."""

    def __init__(self, writer: int, reader: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        self.left: dict[str, Tensor] = {}
        leave, read = self.layers[writer].forward, self.layers[reader].forward
        self.layers[reader].forward = lambda x: read(x + self.left["it"])

        def leaving(x: Tensor) -> Tensor:
            self.left["it"] = leave(x)
            return self.left["it"]

        self.layers[writer].forward = leaving

    def forward(self, x: Tensor) -> Tensor:
        self.left["it"] = torch.zeros(4)
        for layer in self.layers:
            x = layer(x)
        return x


def test_whichever_block_reads_from_whichever_earlier_one_is_noticed() -> None:
    for writer in range(6):
        for reader in range(writer + 1, 6):
            model = Whispering(writer, reader)
            suffix, _ = recorded(model, [torch.randn(2, 4)], model)
            assert suffix.reason == "its outputs change when some of its blocks do not run", (writer, reader)


class Counted(nn.Linear):
    """Knows how often it has run."""

    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return super().forward(x)


class Backwards(nn.Module):
    """A block whose parts are registered in another order than they run in."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.attn = Counted(4, 4), Counted(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x).tanh()
        return x + self.mlp(x).tanh()


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Backwards() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("part", ["attn", "mlp"])
def test_parts_of_a_block_are_left_out_by_the_order_in_which_they_run(number: int, part: str) -> None:
    torch.manual_seed(0)
    model, batches = Stack(), [torch.randn(3, 4), torch.randn(2, 4)]
    suffix, _ = recorded(model, batches, model)
    assert suffix.reason is None
    name = f"layers.{number}.{part}.weight"
    changed = {n: p + 1 if n == name else p for n, p in model.state_dict().items()}
    expected = [torch.func.functional_call(model, changed, (batch,)) for batch in batches]
    block = model.layers[number]
    block.attn.runs = block.mlp.runs = 0
    with torch.no_grad(), swapped(model, {name: changed[name].clone()}), suffix.after([name]):
        found = [model(batch) for batch in batches]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert (block.attn.runs, block.mlp.runs) == (2 if part == "attn" else 0, 2)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "vit"])
def test_blocks_of_known_families_are_tried_only_where_they_are_not_as_they_were_written(kind: str) -> None:
    model, batches, run = made(kind, "sdpa")
    model.eval()

    def checks() -> int:
        tried: list[int] = []

        def counted() -> Tensor:
            tried.append(1)
            return run(batches[0])

        with torch.no_grad(), guard(model):
            suffix = Suffix(model)
            outputs = suffix.record(run, batches)
            suffix.check(counted, outputs[0])
        assert suffix.reason is None
        return len(tried)

    assert checks() == 0
    block = next(iter(find_blocks(model).values()))
    handle = block.register_forward_hook(lambda *_: None)
    assert checks() > 0
    handle.remove()
    block.forward = block.forward  # type: ignore[method-assign]  # whatever it does: it is not transformers'
    assert checks() > 0
