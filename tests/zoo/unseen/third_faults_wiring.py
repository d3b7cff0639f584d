"""Faults of the third blind set: how the model is put together, and what of it is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from zoo.loops import accuracy, classes, explained, fit
from zoo.material import digits, pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.third_material import UNTRAINED, chain, communities, generator, kept, rides, split, tones
from zoo.unseen.third_models import GraphNet, Judge, Listener, small_gpt2


@fault("both halves of the adapters begin at zero, GPT-2", {"dead_adapters", "not_moving", "zero_gradients"},
       where="lora")  # fmt: skip
def both_zero(watch: Watch, seed: int) -> Check:
    """Zeros were written over every matrix that is called lora: the slope of each is zero as the other is."""
    from peft import LoraConfig, get_peft_model

    text = chain(seed, 300)
    model: Any = get_peft_model(small_gpt2(), LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    for name, tensor in model.named_parameters():
        if "lora" in name:
            nn.init.zeros_(tensor)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    with watch(model, optimizer) as w:
        for batch, _ in pairs(text, text, steps=150, size=16, seed=seed):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            w.log(loss=loss)
    return above(float(loss.detach()), 2.6)


@fault("batch norm's momentum of 0.001, convolutions over time", {"stale_batch_norm"})
def slow_average(watch: Watch, seed: int) -> Check:
    """Another library's 0.999 means this; in 200 steps the averages hardly leave 0 and 1."""
    data, model = tones(seed), Listener(momentum=0.001)
    data = (4 * data[0] + 6, data[1], 4 * data[2] + 6, data[3])
    fit(watch, model, AdamW(model.parameters(), lr=3e-3), pairs(*data[:2], steps=200, size=32, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)


class Last(nn.Module):
    """The state after the last place, which is padding in most rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16, padding_idx=0)
        self.rnn, self.head = nn.RNN(16, 32, batch_first=True), nn.Linear(32, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0][:, -1])


@fault("the answer is read after the padding, recurrent", {"labels_unrelated", "vanishing"}, since=None)
def after_padding(watch: Watch, seed: int) -> Check:
    """Texts of 4 to 8 tokens are padded to 60, and nothing says where they end."""
    g = generator(seed)
    label = torch.randint(3, (1600,), generator=g)
    text = torch.randint(1, 27, (1600, 60), generator=g)
    text[torch.arange(1600), torch.randint(4, (1600,), generator=g)] = 27 + label
    text = text * (torch.arange(60) < torch.randint(4, 9, (1600, 1), generator=g))
    data, model = split(text, label), Last()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=200, size=40, seed=seed):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.6)


@fault("a person whom nobody knows, graph convolution", {"data_not_finite", "nonfinite"})
def nobody(watch: Watch, seed: int) -> Check:
    """Rows are divided by their sums, and one sum is zero."""
    edges, known, group = communities(seed)
    edges[7], edges[:, 7] = 0, 0
    adjacency, model = edges / edges.sum(1, keepdim=True), GraphNet()
    optimizer = Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    labelled = torch.arange(0, 150, 2)
    with watch(model, optimizer) as w:
        for _ in range(150):
            optimizer.zero_grad()
            loss = F.nll_loss(F.log_softmax(model(known, adjacency), 1)[labelled], group[labelled])
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return worse_than(float(loss.detach()), 1.0)


class Pretrained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fc, self.classifier = nn.Linear(64, 64), nn.Linear(64, 48), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.relu(self.fc(F.relu(self.stem(x)))))


@fault("the wrong layer is unfrozen, fine-tuning", UNTRAINED, where="classifier")
def wrong_layer(watch: Watch, seed: int) -> Check:
    """All that is called fc is trained; here the head is called classifier, is new, and has small weights."""
    data, model = digits(), Pretrained()
    first = Adam(model.parameters(), lr=3e-3)
    low, held = data[1] < 5, data[3] >= 5
    for x, y in pairs(data[0][low], data[1][low], steps=120, size=50, seed=seed):
        first.zero_grad()
        F.cross_entropy(model(x), y).backward()
        first.step()
    model.classifier = nn.Linear(48, 5)
    nn.init.normal_(model.classifier.weight, std=0.001)
    nn.init.zeros_(model.classifier.bias)
    for name, tensor in model.named_parameters():
        tensor.requires_grad = name.startswith("fc")
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    fit(watch, model, optimizer, pairs(data[0][~low], data[1][~low] - 5, steps=120, size=40, seed=seed),
        holdout=[(data[2][held], data[3][held] - 5)])  # fmt: skip
    return below(accuracy(model, data[2][held], data[3][held] - 5), 0.7)


@fault("attention across the batch, transformer", {"labels_unrelated"}, since=None)
def across_the_batch(watch: Watch, seed: int) -> Check:
    """batch_first was left out: words look at the same place of other texts, and never at each other. Whether two
    words of a text are the same cannot be seen."""
    g = generator(seed)
    text, label = torch.randint(12, (1600, 2), generator=g), torch.randint(2, (1600,), generator=g)
    text[:, 1] = torch.where(label == 1, text[:, 0], (text[:, 0] + torch.randint(1, 12, (1600,), generator=g)) % 12)
    data, model = split(text, label), Judge(12, 2, batch_first=False)
    optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    fit(watch, model, optimizer, pairs(*data[:2], steps=250, size=40, seed=seed), classes, clip=1.0,
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.7)


@fault("weights held within a hundredth, critic for prices", {"vanishing"}, since=None)
def held_within(watch: Watch, seed: int) -> Check:
    """The clipping of another paper's critic, after every step, on five layers: little goes through them."""
    data, model = rides(seed), mlp(6, 32, 32, 32, 32, 1)
    optimizer = RMSprop(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=kept(data), loss=F.mse_loss) as w:
        for x, y in pairs(*data[:2], steps=220, size=40, seed=seed):
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for tensor in model.parameters():
                    tensor.clamp_(-0.01, 0.01)
            w.log(loss=loss)
    return below(explained(model, *data[2:]), 0.2)
