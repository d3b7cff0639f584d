"""Loops without a torch optimizer that could be followed, episodes of varying length, and a hidden state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.account import Account


def by_hand(account: Account) -> nn.Module:
    """Gradient descent as the first tutorials write it."""
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(32, 3)
    y = x.prod(1, keepdim=True)
    account.watch(model)
    for step in range(5):
        loss = (model(x) - y).pow(2).sum()
        model.zero_grad()
        loss.backward()
        account.given(model.parameters())
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= 1e-3 / (1 + step) * p.grad
        account.took(loss=loss.item())
        if account.w is not None:
            account.w.step()
        account.log(loss=loss)
    return model


def lbfgs(account: Account) -> nn.Module:
    """The gradients of a step are those that its last evaluation left."""
    model = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    x = torch.linspace(-1, 1, 24).unsqueeze(1)
    y = torch.sin(3 * x)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    account.watch(model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(4):
        loss = optimizer.step(closure).detach()  # type: ignore[arg-type]
        account.given(model.parameters())
        account.took(loss=float(loss))
        if account.w is not None:
            account.w.step()
        account.log(loss=float(loss))
    return model


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1, self.dropout, self.affine2 = nn.Linear(2, 12), nn.Dropout(0.3), nn.Linear(12, 2)
        self.saved_log_probs: list[Tensor] = []
        self.rewards: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.affine2(F.relu(self.dropout(self.affine1(x)))), dim=-1)


class Walk:
    """A point on a line that is pushed left or right; the episode ends when it leaves [-1, 1]."""

    def reset(self) -> Tensor:
        self.position = torch.rand(()) * 0.4 - 0.2
        return torch.stack([self.position, torch.tensor(1.0)])

    def step(self, action: int) -> tuple[Tensor, float, bool]:
        self.position = self.position + (0.3 if action else -0.3) + 0.2 * torch.randn(())
        done = bool(self.position.abs() > 1)
        return torch.stack([self.position, torch.tensor(1.0)]), 1.0 - float(self.position.abs()), done


def reinforce(account: Account, lengths: list[int]) -> nn.Module:
    policy, env = Policy(), Walk()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    account.watch(policy, optimizer)
    for _ in range(6):
        state, total = env.reset(), 0.0
        for _ in range(60):
            distribution = torch.distributions.Categorical(policy(state.unsqueeze(0)))
            action = distribution.sample()
            policy.saved_log_probs.append(distribution.log_prob(action))
            state, reward, done = env.step(int(action))
            policy.rewards.append(reward)
            total += reward
            if done:
                break
        lengths.append(len(policy.rewards))
        returns, running = [], 0.0
        for reward in reversed(policy.rewards):
            running = reward + 0.99 * running
            returns.insert(0, running)
        scaled = torch.tensor(returns)
        scaled = (scaled - scaled.mean()) / (scaled.std(correction=0) + 1e-6)
        losses = [-log_prob * value for log_prob, value in zip(policy.saved_log_probs, scaled, strict=True)]
        optimizer.zero_grad()
        loss = torch.cat(losses).sum()
        loss.backward()
        account.given(optimizer)
        optimizer.step()
        account.took(loss=loss.item(), reward=total)
        account.log(loss=loss, reward=total)
        policy.rewards.clear()
        policy.saved_log_probs.clear()
    return policy


class RNNModel(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(tokens, 10)
        self.rnn = nn.LSTM(10, 12, 2, dropout=0.2)
        self.decoder = nn.Linear(12, tokens)

    def forward(self, inputs: Tensor, hidden: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, hidden = self.rnn(self.drop(self.encoder(inputs)), hidden)
        return F.log_softmax(self.decoder(self.drop(output)).flatten(0, 1), dim=1), hidden


def language_model(account: Account) -> nn.Module:
    """Truncated backpropagation: the hidden state goes on, its graph does not. The update is written out."""
    tokens, length, rate = 11, 5, 2.0
    model, criterion = RNNModel(tokens), nn.NLLLoss()
    source = ((torch.arange(31).unsqueeze(1) * torch.tensor([1, 2, 3, 5])) % tokens).contiguous()
    account.watch(model)
    model.train()
    hidden: tuple[Tensor, ...] = (torch.zeros(2, 4, 12), torch.zeros(2, 4, 12))
    for start in range(0, len(source) - 1, length):
        data, targets = source[start : start + length], source[start + 1 : start + 1 + length].reshape(-1)
        model.zero_grad()
        hidden = tuple(part.detach() for part in hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        account.given(model.parameters(), clipped_from=norm)
        for p in model.parameters():
            assert p.grad is not None
            p.data.add_(p.grad, alpha=-rate)
        account.took(loss=loss.item())
        if account.w is not None:
            account.w.step()
        account.log(loss=loss)
    return model
