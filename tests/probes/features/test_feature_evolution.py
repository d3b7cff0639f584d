"""The probe against features captured by hand: in watch and replay, over a resume, and where something is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from scipy.stats import entropy
from sklearn.metrics import silhouette_score
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.tensor.features.similarity import unbiased_cka
from probes.reference import at_scope, tiny_gpt2, tokens

PROBE = "FeatureEvolution"


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def labelled(n: int = 120, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def at(run: ls.Run, name: str, scope: str) -> list[float | None]:
    frame = run.frame(PROBE, name, "layer").sort_values("step")
    chosen = frame[frame["scope"] == scope]["value"]
    return [None if np.isnan(v) else float(v) for v in chosen]


def status(run: ls.Run, name: str, scope: str) -> list[Any]:
    frame = run.frame(PROBE, name, "layer").sort_values("step")
    return list(frame[frame["scope"] == scope]["status"])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int, w: ls.Watch | None = None) -> list[Any]:
    x, y = labelled()
    states = []
    for _ in range(epochs):
        for a, b in zip(x.split(30), y.split(30), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        if w is not None:
            w.end_epoch()
    return states


def test_numbers_in_a_watched_run_and_in_its_replay(tmp_path: Path) -> None:
    x, y = labelled(90, seed=2)
    batches = [(x[:50], y[:50]), (x[50:], y[50:])]
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.FeatureEvolution(samples=80)], holdout=batches,
                  strict=True) as w:  # fmt: skip
        states = train(model, optimizer, 3, w)
    run = ls.open_run(tmp_path / "r")
    assert set(at_scope(run, PROBE, "rankme", "layer")) == {"0", "2"}  # neither the head nor what has no parameters
    features = []
    for state in states:
        model.load_state_dict(state)
        with torch.no_grad():
            features.append(model[:3](x[:80]))
    for step, hidden in enumerate(features):
        rows, labels = hidden.double().numpy(), y[:80].numpy()
        assert at(run, "silhouette", "2")[step] == pytest.approx(silhouette_score(rows, labels), rel=1e-6)
        s = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
        assert at(run, "effective_rank", "2")[step] == pytest.approx(np.exp(entropy(s)), rel=1e-6)
        p = np.linalg.svd(rows, compute_uv=False)
        p = p / p.sum() + 1e-7
        assert at(run, "rankme", "2")[step] == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-6)
        within = sum(((rows[labels == c] - rows[labels == c].mean(0)) ** 2).sum() for c in range(3))
        between = ((rows - rows.mean(0)) ** 2).sum() - within
        assert at(run, "separability", "2")[step] == pytest.approx(between / within, rel=1e-5)
    probed = at(run, "linear_probe", "2")
    assert all(0.5 < value <= 1 for value in probed if value is not None)
    assert at(run, "linear_probe_chance", "2") == [pytest.approx(np.bincount(y[:80]).max() / 80)] * 3
    assert at(run, "cka_previous", "2")[1:] == pytest.approx(
        [unbiased_cka(features[1], features[0]), unbiased_cka(features[2], features[1])], rel=1e-6
    )
    assert at(run, "cka_first", "2")[2] == pytest.approx(unbiased_cka(features[2], features[0]), rel=1e-6)
    assert at(run, "cka_first", "2")[2] != pytest.approx(at(run, "cka_previous", "2")[2], rel=1e-4)
    assert status(run, "cka_first", "2")[0] == status(run, "cka_previous", "2")[0] == "the first measurement"
    last = list(run.records(PROBE))[-1]
    assert last.notes["examples"] == 80
    assert (last.notes["cka_first_step"], last.notes["cka_previous_step"]) == (4, 8)

    again = ls.replay({4 * i + 4: s for i, s in enumerate(states)}, model=net(), holdout=batches,
                      probes=[ls.FeatureEvolution(samples=80)], strict=True, progress=False)  # fmt: skip
    for name in ("silhouette", "separability", "effective_rank", "linear_probe", "cka_first", "between_distance"):
        assert at(again, name, "2") == at(run, name, "2"), name


def test_a_resumed_run_compares_with_what_was_kept(tmp_path: Path) -> None:
    # two of them: the features that they share at a moment must be saved all the same
    probes = [ls.FeatureEvolution(layers=["2"]), ls.FeatureEvolution(layers=["2"], memory_mb=1)]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    batches = [labelled(60, seed=2)]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=whole, probes=probes, holdout=batches, strict=True) as w:
        train(model, optimizer, 4, w)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=parts, probes=probes, holdout=batches, strict=True) as w:
        train(model, optimizer, 1, w)
        assert w.save_state() is not None
    with ls.watch(model, optimizer, run=parts, probes=probes, holdout=batches, strict=True, resume=True) as w:
        train(model, optimizer, 3, w)
    for name in ("cka_previous", "cka_first"):
        found = at(ls.open_run(parts), name, "2")
        assert None not in found[1:]
        assert found == at(ls.open_run(whole), name, "2")


kept_by_probe: dict[str, Any] = {}


class Seen(ls.FeatureEvolution):
    """Shows what it keeps."""

    def measure(self, moment: ls.Moment) -> Any:
        found = super().measure(moment)
        kept_by_probe.update(moment.state)
        return found


def test_nothing_is_kept_beyond_the_bound() -> None:
    model, batches = net(), [labelled(100)]
    # 100 examples of 12 dimensions, twice, in float32: 9,600 bytes; of 8 more: 6,400
    for memory, kept in ((0.0161, ["0", "2"]), (0.0159, ["0"]), (0.0, [])):
        kept_by_probe.clear()
        run = ls.replay({1: model, 2: model}, probes=[Seen(memory_mb=memory)], holdout=batches, strict=True,
                        progress=False)  # fmt: skip
        tensors = {key for key, value in kept_by_probe.items() if isinstance(value, Tensor)}
        assert tensors == {f"{which}/{name}" for which in ("first", "previous") for name in kept}
        frame = run.frame("Seen", "cka_first", "layer")
        last = frame[frame["step"] == 2].set_index("scope")
        for name in ("0", "2"):
            if name in kept:
                assert last.loc[name, "value"] == pytest.approx(1, abs=1e-9)
            else:
                assert "memory_mb" in str(last.loc[name, "status"])


def test_language_models_have_no_classes_and_no_logits_are_kept() -> None:
    model = tiny_gpt2()
    ids, mask = tokens(12, 10), torch.ones(12, 10, dtype=torch.int64)
    mask[:4, 6:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    run = ls.audit(model, [batch], probes=[ls.FeatureEvolution(pooling="last")], strict=True)
    assert set(at_scope(run, PROBE, "dimensions", "layer").values()) == {16}
    assert status(run, "silhouette", "transformer.h.1") == ["an example has several targets, not one class"]
    model.eval()
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states[-1].double()
    rows = hidden[torch.arange(12), mask.sum(1) - 1].numpy()
    s = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
    assert at(run, "effective_rank", "transformer.ln_f") == [pytest.approx(np.exp(entropy(s)), rel=1e-5)]


def test_absent_numbers_have_their_reasons() -> None:
    x, _ = labelled(20)

    def audited(batches: Any, model: nn.Module | None = None) -> ls.Run:
        return ls.audit(model or net(), batches, probes=[ls.FeatureEvolution(layers=["2"])], strict=True)

    assert status(audited([(x, torch.randn(20, 3))]), "linear_probe", "2") == ["float targets are no classes"]
    assert status(audited([(x,)]), "separability", "2") == ["the holdout has no targets"]
    one = audited([(x, torch.zeros(20).long())])
    assert status(one, "separability", "2") == ["two classes are needed; there is one"]
    assert "2 classes" in status(one, "silhouette", "2")[0]
    assert status(one, "between_distance", "2") == ["two classes are needed; there is one"]
    features = net()[:3](x).detach().double().numpy()
    assert at(one, "within_distance", "2") == [pytest.approx(pdist(features).mean(), rel=1e-5)]
    # there is no loss, and features need none; which target is named depends on the threads
    with pytest.warns(UserWarning, match=r"Target \d+ is out of bounds"):
        each = audited([(x, torch.arange(20))])
    assert status(each, "within_distance", "2") == status(each, "separability", "2") == ["no class has two examples"]
    assert at(each, "between_distance", "2") == [pytest.approx(pdist(features).mean(), rel=1e-5)]
    assert "needs 2 classes" in status(one, "linear_probe", "2")[0]
    assert at(one, "effective_rank", "2")[0] is not None
    few = audited([(x[:3], torch.tensor([0, 1, 1]))])
    assert status(few, "cka_first", "2") == ["CKA needs 4 examples; there are 3"]
    assert at(few, "separability", "2")[0] is not None
    broken = net()
    with torch.no_grad():
        broken[2].bias[0] = float("nan")
    nan = audited([labelled(20)], broken)
    names = ("silhouette", "separability", "effective_rank", "rankme", "linear_probe", "cka_first")
    assert {status(nan, name, "2")[0] for name in names} == {"features are not finite"}
    dead = net()
    with torch.no_grad():
        dead[2].weight.zero_()
    still = audited([labelled(20)], dead)
    assert status(still, "effective_rank", "2") == ["features are the same for every example"]
    assert status(still, "cka_first", "2") == ["features are the same for every example"]
    x, y = labelled(40)
    some = y.clone()
    some[:20] = -100
    sizes = np.bincount(y[20:])
    part, alone = audited([(x, some)]), audited([(x[20:], y[20:])])
    assert at(part, "linear_probe_examples", "2") == [sizes[sizes >= 5].sum()]
    assert at(part, "within_distance", "2") == pytest.approx(at(alone, "within_distance", "2"), rel=1e-6)


def test_wrong_options_are_refused() -> None:
    for wrong, word in (
        ({"pooling": "max"}, "mean, last, cls"),
        ({"samples": 0}, "whole number from 1"),
        ({"layers": "2"}, "list of names"),
        ({"layers": []}, "list of names"),
        ({"memory_mb": -1}, "from 0"),
    ):
        with pytest.raises(ValueError, match=word):
            ls.FeatureEvolution(**wrong)
    with pytest.raises(KeyError, match="no layer 'fc'"):
        ls.audit(net(), [labelled(8)], probes=[ls.FeatureEvolution(layers=["fc"])], strict=True)
    with pytest.raises(ValueError, match="pass holdout="):
        ls.watch(net(), probes=[ls.FeatureEvolution()])


def test_features_are_computed_once_at_a_moment() -> None:
    model = net()
    forwards: list[int] = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    ls.audit(model, [labelled(30)], probes=[ls.FeatureEvolution(), ls.FeatureEvolution()], strict=True)
    assert len(forwards) == 2  # with the trial of the task


def test_features_are_kept_when_asked_for() -> None:
    x, y = labelled(30)
    y[4] = -100
    model = net()
    run = ls.audit(model, [(x[:20], y[:20]), (x[20:], y[20:])], strict=True,
                   probes=[ls.FeatureEvolution(layers=["0", "2"], keep_features=True, samples=25)])  # fmt: skip
    arrays = run.arrays(PROBE)
    assert set(arrays) == {"features/0", "features/2", "labels"}
    assert arrays["labels"].tolist() == y[:25].tolist()
    with torch.no_grad():
        # batches of 20 and 5 against one of 25: other kernels, so the last digits of float32 may differ
        np.testing.assert_allclose(arrays["features/2"], model[:3](x[:25]).numpy(), rtol=1e-5, atol=1e-6)
    assert arrays["features/0"].dtype == np.float32
    unlabelled = ls.audit(model, [(x,)], probes=[ls.FeatureEvolution(keep_features=True, samples=None)], strict=True)
    assert "labels" not in unlabelled.arrays(PROBE)
    assert len(unlabelled.arrays(PROBE)["features/0"]) == 30
    assert not ls.audit(model, [(x, y)], probes=[ls.FeatureEvolution()], strict=True).array_steps(PROBE)


def test_other_examples_are_not_compared(tmp_path: Path) -> None:
    """A resumed run may be given another holdout of the same size: the features of two samples have no CKA."""
    probes = [ls.FeatureEvolution(layers=["2"])]
    x, y = labelled(40, seed=2)
    relabelled = y.clone()
    relabelled[-1] = (relabelled[-1] + 1) % 3
    moved = x.clone()
    moved[-1] = 0.5
    seen = {}
    for name, batches in {
        "the same": [(x, y)],
        "batched otherwise": [(x[:13], y[:13]), (x[13:], y[13:])],
        "another label": [(x, relabelled)],
        "another input": [(moved, y)],
        "another order": [(x.flip(0), y.flip(0))],
    }.items():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        folder = tmp_path / name
        with ls.watch(model, optimizer, run=folder, probes=probes, holdout=[(x, y)], strict=True) as w:
            train(model, optimizer, 1, w)
            w.save_state()
        with ls.watch(model, optimizer, run=folder, probes=probes, holdout=batches, strict=True, resume=True) as w:
            train(model, optimizer, 2, w)
        run = ls.open_run(folder)
        reasons = (status(run, which, "2") for which in ("cka_first", "cka_previous"))
        seen[name] = [[one if isinstance(one, str) else None for one in each] for each in reasons]
    first, other = "the first measurement", "then there were as many examples, but not these"
    same = [[first, None, None]] * 2
    changed = [[first, other, other], [first, other, None]]  # the second look at the new sample has a previous one
    assert seen == {
        "the same": same, "batched otherwise": same, "another label": changed, "another input": changed,
        "another order": changed,
    }  # fmt: skip
