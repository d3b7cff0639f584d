"""Layers with their earlier weights back, against models that are put together by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

import learnscope as ls

LAYERS = ("0", "2", "4")


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4)).double()


def tuned_from(base: nn.Sequential, moved: dict[str, float]) -> nn.Sequential:
    """`base` with noise of these sizes on its layers."""
    model = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer, size in moved.items():
            for parameter in model.get_submodule(layer).parameters():
                parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def data(model: nn.Module, n: int = 64) -> tuple[Tensor, Tensor]:
    """Targets that the model itself would give, so that a change of it makes the loss larger."""
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return x, model(x).argmax(-1)


def rewound(base: nn.Module, tuned: nn.Module, batch: Any, **options: Any) -> ls.Run:
    model = copy.deepcopy(tuned)
    checkpoints: dict[int, Any] = {0: base.state_dict(), 1: tuned.state_dict()}
    probe = ls.LayerRewind(every=1, **options)
    run = ls.replay(checkpoints, model=model, probes=[probe], holdout=[batch], strict=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, tuned.state_dict()[name]), "the caller's model is as it was"
    return run


def value(run: ls.Run, name: str, scope: str, rewound: int | None = None) -> float:
    frame = run.frame("LayerRewind", name)
    frame = frame[(frame["scope"] == scope) & (frame["step"] == 1)]
    if rewound is not None:
        frame = frame[frame["rewound"] == rewound]
    (found,) = frame["value"]
    return float(found)


def by_hand(base: nn.Module, tuned: nn.Module, layers: list[str], x: Tensor, y: Tensor) -> tuple[float, float]:
    """KL from the tuned model, and the rise of the loss, with the base's weights in these layers."""
    model = copy.deepcopy(tuned)
    for layer in layers:
        model.get_submodule(layer).load_state_dict(base.get_submodule(layer).state_dict())
    with torch.no_grad():
        p, q = (log_softmax(each(x).numpy(), axis=-1) for each in (tuned, model))
    kl = (torch.tensor(p).exp() * torch.tensor(p - q)).sum(-1).mean()
    losses = [-torch.tensor(each)[torch.arange(len(y)), y].mean() for each in (p, q)]
    return float(kl), float(losses[1] - losses[0])


def test_each_layer_alone_and_all_together_are_models_put_together_by_hand() -> None:
    base = net()
    tuned = tuned_from(base, {"0": 0.02, "2": 0.3, "4": 0.1})
    x, y = data(tuned)
    run = rewound(base, tuned, (x, y), examples=64)
    for layer in LAYERS:
        kl, change = by_hand(base, tuned, [layer], x, y)
        assert value(run, "kl", layer) == pytest.approx(kl, rel=1e-6)
        assert value(run, "loss_change", layer) == pytest.approx(change, rel=1e-6)
        old, new = (
            torch.cat([p.detach().flatten() for p in m.get_submodule(layer).parameters()]) for m in (base, tuned)
        )
        assert value(run, "relative_distance", layer) == pytest.approx(float((new - old).norm() / old.norm()))
        assert value(run, "damage_low", layer) <= kl <= value(run, "damage_high", layer)
    held_out = torch.arange(1, 64, 2)  # every other example has chosen the order
    (record,) = (record for record in run.records() if record.step == 1)
    for rewound_layers in (1, 2, 3):
        kl, change = by_hand(base, tuned, record.notes["order"][:rewound_layers], x[held_out], y[held_out])
        assert value(run, "kl", "model", rewound_layers) == pytest.approx(kl, rel=1e-6)
        assert value(run, "loss_change", "model", rewound_layers) == pytest.approx(change, rel=1e-6)
    assert record.notes["span"] == [0, 1]


def test_layers_that_hardly_moved_could_go_back_and_the_one_that_learned_could_not() -> None:
    base = net()
    tuned = tuned_from(base, {"0": 1e-4, "2": 1e-4, "4": 2.0})
    run = rewound(base, tuned, data(tuned), examples=64)
    (record,) = (record for record in run.records() if record.step == 1)
    assert sorted(record.notes["go_back"]) == ["0", "2"]
    assert record.notes["order"][-1] == "4"
    assert value(run, "could_go_back", "model") == 2
    (finding,) = (finding for finding in run.findings() if finding.kind == "layers_not_needed")
    assert finding.title == "2 of 3 changed layers could have the weights of step 0 back"


def test_an_unchanged_layer_costs_nothing_and_is_named() -> None:
    base = net()
    tuned = tuned_from(base, {"4": 0.5})
    run = rewound(base, tuned, data(tuned))
    (record,) = (record for record in run.records() if record.step == 1)
    assert record.notes["unchanged"] == ["0", "2"]
    for name in ("kl", "damage_low", "damage_high", "loss_change", "loss_change_low", "relative_distance"):
        assert value(run, name, "0") == 0.0
    assert not [finding for finding in run.findings() if finding.kind == "layers_not_needed"]


def test_few_examples_decide_nothing() -> None:
    base = net()
    tuned = tuned_from(base, {"0": 1e-4, "2": 1e-4, "4": 2.0})
    run = rewound(base, tuned, data(tuned, 6))
    (record,) = (record for record in run.records() if record.step == 1)
    assert record.notes["go_back"] == []
    assert "examples" in record.notes["undecided"]


def test_of_regression_the_bound_is_a_share_of_the_loss() -> None:
    base = net()
    tuned = tuned_from(base, {"0": 1e-5, "4": 0.5})
    with torch.no_grad():
        for parameter in (*base[4].parameters(), *tuned[4].parameters()):
            parameter.mul_(1e3)
    x, _ = data(tuned)
    noise = torch.randn(64, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    run = rewound(base, tuned, (x, tuned(x).detach() + 100.0 * noise), examples=64)
    (record,) = (record for record in run.records() if record.step == 1)
    assert record.notes["go_back"] == ["0"]
    frame = run.frame("LayerRewind", "kl")
    assert frame["value"].isna().all()
    assert frame["status"].str.contains("float targets").all()


@pytest.mark.parametrize("options", [{"examples": 0}, {"loss_bound": 0.0}, {"loss_bound": float("nan")}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"LayerRewind.*{next(iter(options))}"):
        ls.LayerRewind(**options)
