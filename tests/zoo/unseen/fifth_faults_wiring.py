"""Faults of the fifth blind set: how models are put together, what of them is trained, and what is held out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import TensorDataset

from zoo.loops import accuracy, fit, squares
from zoo.material import digits, pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, fault
from zoo.unseen.fifth_material import UNTRAINED, generator, kept, letters_to, meters, walk
from zoo.unseen.fifth_models import ConvVAE, Dilated, Residual, WordConv, little_bert


@fault("held-out pictures left from 0 to 16, residual network", {"holdout_differs", "not_generalising"},
       wrong={"overfitting"})  # fmt: skip
def from_0_to_16(watch: Watch, seed: int) -> Check:
    """The division stands in the transform for training alone."""
    data, model = digits(images=True), Residual()
    held = 16 * data[2]
    fit(watch, model, SGD(model.parameters(), lr=0.05, momentum=0.9), pairs(*data[:2], steps=200, size=32, seed=seed),
        holdout=TensorDataset(held[:200], data[3][:200]))  # fmt: skip
    return below(accuracy(model, held, data[3]), 0.87)


@fault("labels numbered anew on the holdout, convolutions over words", {"holdout_differs", "not_generalising"},
       wrong={"overfitting"})  # fmt: skip
def numbered_anew(watch: Watch, seed: int) -> Check:
    """Among the held-out texts the first kind does not occur, and the encoder of labels is fitted to them again."""
    data, model = letters_to(seed), WordConv()
    rows = data[3] > 0
    held, labels = data[2][rows], data[3][rows] - 1
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
        holdout=TensorDataset(held[:200], labels[:200]))  # fmt: skip
    return below(accuracy(model, held, labels), 0.3)


@fault("adapters without the new head, BERT", UNTRAINED, where="classifier", wrong={"vanishing"})
def without_the_head(watch: Watch, seed: int) -> Check:
    """No kind of task was given: all but the adapters is frozen, the head that was just made included."""
    from peft import LoraConfig, get_peft_model

    data, bert = letters_to(seed), little_bert()
    first = AdamW(bert.parameters(), lr=2e-3)
    for x, y in pairs(*data[:2], steps=250, size=32, seed=seed):
        first.zero_grad()
        bert(input_ids=x, labels=3 - y).loss.backward()
        first.step()
    bert.classifier = nn.Linear(32, 4)
    nn.init.normal_(bert.classifier.weight, std=0.02)
    model: Any = get_peft_model(bert, LoraConfig(r=4, lora_alpha=16, target_modules=["query", "value"]))
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    with watch(model, optimizer, holdout=[{"input_ids": data[2][:200], "labels": data[3][:200]}]) as w:
        for x, y in pairs(*data[:2], steps=200, size=32, seed=seed):
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.75)


@fault("the optimizer has the encoder alone, convolutional autoencoder", UNTRAINED, where="decoder",
       wrong={"vanishing"})  # fmt: skip
def encoder_alone(watch: Watch, seed: int) -> Check:
    """`model.encoder.parameters()`: the line is from the script that fine-tunes a classifier."""
    data, model = digits(images=True), ConvVAE()
    optimizer = AdamW(model.encoder.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=220, size=40, seed=seed):
            made, mean, spread = model(x)
            error = F.mse_loss(made, x, reduction="sum") / len(x)
            loss = error + 0.05 * (mean**2 + spread.exp() - spread - 1).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return above(float(F.mse_loss(model.eval()(data[2])[0], data[2]) / data[2].var(0).mean()), 0.8)


@fault("the copy that lags is never brought up to date, values of a corridor",
       {"frozen", "no_gradient", "not_moving", "not_optimised"}, where="copy")  # fmt: skip
def never_up_to_date(watch: Watch, seed: int) -> Check:
    """It is counted by what is in the memory, which is full and stays so: the values rest on a random network."""
    model = nn.ModuleDict({"now": mlp(8, 32, 2), "copy": mlp(8, 32, 2)})
    model["copy"].load_state_dict(model["now"].state_dict())
    optimizer, g, seen = Adam(model["now"].parameters(), lr=5e-3), generator(seed), 1000
    with watch(model, optimizer) as w:
        for _ in range(300):
            state, move = torch.randint(1, 7, (64,), generator=g), torch.randint(2, (64,), generator=g)
            after, reward, over = walk(state, move)
            with torch.no_grad():
                best = model["copy"](F.one_hot(after, 8).float()).amax(1)
            said = model["now"](F.one_hot(state, 8).float()).gather(1, move[:, None]).squeeze(1)
            loss = F.mse_loss(said, reward + 0.9 * best * ~over)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if seen % 999 == 0:
                model["copy"].load_state_dict(model["now"].state_dict())
            seen = min(seen + 64, 1000)
    with torch.no_grad():
        right = model["now"](torch.eye(8))[1:7, 1]
    return above(float((right - 0.9 ** torch.arange(5.0, -1.0, -1.0)).abs().mean()), 0.25)


class Attentive(nn.Module):
    def __init__(self, words: int = 60, kinds: int = 4, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, kinds)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text)
        q, k, v = self.qkv(self.norm1(x)).view(len(x), -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.6)
        x = self.out(mixed.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x[:, 0])


@fault("dropout of the attention whatever the mode, transformer", {"dropout_in_evaluation"})
def whatever_the_mode(watch: Watch, seed: int) -> Check:
    """The function takes a share and knows of no mode: answers of an evaluation are drawn by lot."""
    data, model = letters_to(seed), Attentive()
    fit(watch, model, AdamW(model.parameters(), lr=3e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
        holdout=kept(data))  # fmt: skip
    with torch.no_grad():
        first, second = (model.eval()(data[2]).argmax(1) for _ in range(2))
    return above(float((first != second).double().mean()), 0.1)


@fault("the share to keep given as the share to drop, convolutions over words", {"dropout_too_strong"})
def share_to_keep(watch: Watch, seed: int) -> Check:
    """`keep_prob` of the old code was 0.95."""
    data, model = letters_to(seed), WordConv(dropout=0.95)
    fit(watch, model, SGD(model.parameters(), lr=0.1, momentum=0.9), pairs(*data[:2], steps=220, size=32, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.7)


@fault("every tensor drawn with a spread of one, dilated convolutions", {"exploding", "exploding_initialisation"})
def spread_of_one(watch: Watch, seed: int) -> Check:
    """`normal_` as it stands, for all that the model has."""
    data, model = meters(seed), Dilated()
    for tensor in model.parameters():
        nn.init.normal_(tensor)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=220, size=32, seed=seed), squares,
        holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    with torch.no_grad():
        return above(float(F.mse_loss(model(data[2]), data[3]) / data[3].var()), 2.0)


@fault("validated before the first epoch and never set back, residual network",
       {"eval_mode_training", "stale_batch_norm"})  # fmt: skip
def never_set_back(watch: Watch, seed: int) -> Check:
    """The check of sanity leaves eval mode on: the norms norm nothing, at a rate that needs them."""
    data, model = digits(images=True), Residual()
    accuracy(model, data[2][:50], data[3][:50])
    fit(watch, model, SGD(model.parameters(), lr=0.3, momentum=0.9), pairs(*data[:2], steps=200, size=32, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)
