"""Spectra of weights in watched and audited models, against NumPy in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import learnscope as ls
from learnscope.model.selection import SelectionError
from learnscope.tensor.weights.singular import power_law
from probes.reference import ConvNet, mlp, tiny_gpt2
from seeds.tiny import language_model

PROBE = "WeightSpectrum"
NEEDS_ALL = (
    "smallest_sv", "spectral_gap", "condition_number", "numerical_rank", "effective_rank", "rank_utilisation",
    "participation_ratio", "nuclear_norm", "top1_nuclear_share", "power_law_alpha", "power_law_tail",
)  # fmt: skip


def audited(model: nn.Module, **options: Any) -> ls.Run:
    return ls.audit(model, probes=[ls.WeightSpectrum(**options)], strict=True)


def rows(run: ls.Run, name: str) -> pd.DataFrame:
    return run.frame(PROBE, name, "tensor").set_index("scope")


def matrix(p: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = p.detach().double().numpy().reshape(len(p), -1)
    return found


def check(run: ls.Run, scope: str, weight: NDArray[np.float64]) -> None:
    """Every number of one matrix, from NumPy's singular values and the formulas."""
    s = np.linalg.svd(weight, compute_uv=False)
    share = s / s.sum()
    expected = {
        "largest_sv": s[0],
        "smallest_sv": s[-1],
        "stable_rank": (weight**2).sum() / s[0] ** 2,
        "effective_rank": math.exp(-sum(p * math.log(p) for p in share if p > 0)),
        "participation_ratio": s.sum() ** 2 / (s**2).sum(),
        "nuclear_norm": s.sum(),
        "frobenius_norm": np.linalg.norm(weight),
        "condition_number": s[0] / s[-1],
        "numerical_rank": np.linalg.matrix_rank(weight, tol=1e-6 * s[0]),
        "top1_sv_ratio": s[0] ** 2 / (s**2).sum(),
        "top5_sv_ratio": (s[:5] ** 2).sum() / (s**2).sum(),
        "top10_sv_ratio": (s[:10] ** 2).sum() / (s**2).sum(),
    }
    for name, value in expected.items():
        assert rows(run, name).value[scope] == pytest.approx(value, rel=1e-9), (scope, name)
    np.testing.assert_allclose(run.arrays(PROBE)[f"singular_values/{scope}"], s, rtol=1e-9, atol=1e-14)


def test_numbers_of_linear_layers_convolutions_and_embeddings() -> None:
    torch.manual_seed(0)
    for model, scopes in (
        (mlp(9, 7, 3), ["0.weight", "2.weight"]),
        (ConvNet(), ["conv1.weight", "conv2.weight", "head.weight"]),
        (mlp(9, 7, 3).to(torch.bfloat16), ["0.weight", "2.weight"]),
        (nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 1)), ["0.weight", "1.weight"]),
    ):
        run = audited(model)
        named = dict(model.named_parameters())
        assert list(rows(run, "largest_sv").index) == scopes
        assert set(rows(run, "largest_sv").spectrum) == {"full"}
        for scope in scopes:
            check(run, scope, matrix(named[scope]))


def test_a_model_in_training_with_wrapped_names() -> None:
    torch.manual_seed(1)
    model = nn.DataParallel(mlp(6, 5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.WeightSpectrum(every=2)], strict=True) as w:
        for _ in range(4):
            model.module(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert sorted(set(w.run.frame(PROBE, "largest_sv").step)) == [2, 4]
    now = w.run.frame(PROBE, "largest_sv").query("step == 4").set_index("scope").value
    for scope in ("0.weight", "2.weight"):
        truth = np.linalg.norm(matrix(model.module.get_parameter(scope)), 2)
        assert now[scope] == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("full", [True, False])
def test_watching_changes_nothing(full: bool) -> None:
    def trained(probes: list[ls.Probe]) -> tuple[dict[str, Tensor], Tensor]:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(6, 600), nn.Dropout(0.3), nn.Linear(600, 600), nn.Linear(600, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ls.watch(model, optimizer, probes=probes, strict=True):
            for _ in range(2):
                model(torch.randn(8, 6)).square().mean().backward()
                optimizer.step()
        return model.state_dict(), torch.get_rng_state()

    plain, seen = trained([]), trained([ls.WeightSpectrum(every=1, full=full)])
    assert all(torch.equal(value, seen[0][name]) for name, value in plain[0].items())
    assert torch.equal(plain[1], seen[1])


def test_only_the_largest() -> None:
    torch.manual_seed(3)
    model = nn.ModuleDict({"large": nn.Linear(620, 600, bias=False), "small": nn.Linear(20, 30, bias=False)})
    run = audited(model, full=False, leading=8)
    assert dict(rows(run, "largest_sv").spectrum) == {"large.weight": "leading", "small.weight": "full"}
    check(run, "small.weight", matrix(model["small"].weight))
    weight = matrix(model["large"].weight)
    s = np.linalg.svd(weight, compute_uv=False)
    energy = (s**2).sum()
    for name, value in {"largest_sv": s[0], "leading_gap": s[0] - s[1], "frobenius_norm": np.linalg.norm(weight),
                        "stable_rank": energy / s[0] ** 2, "top1_sv_ratio": s[0] ** 2 / energy,
                        "top5_sv_ratio": (s[:5] ** 2).sum() / energy}.items():  # fmt: skip
        assert rows(run, name).value["large.weight"] == pytest.approx(value, rel=1e-6), name
    for name in (*NEEDS_ALL, "top10_sv_ratio"):
        assert math.isnan(rows(run, name).value["large.weight"])
        assert "only the 8 largest" in rows(run, name).status["large.weight"]
    assert 0 < rows(run, "leading_error").value["large.weight"] <= 1e-4
    np.testing.assert_allclose(run.arrays(PROBE)["singular_values/large.weight"], s[:8], rtol=1e-7)


def test_the_power_law_is_fitted_to_the_eigenvalues() -> None:
    """σ² drawn from ρ(λ) ∝ λ^−2.5 above 1 gives that exponent back; too few values give none."""
    torch.manual_seed(4)
    u = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    sigma = (1 - u) ** (-1 / (2 * 1.5))  # inverse of the distribution, σ = √λ
    left, right = (torch.linalg.qr(torch.randn(400, 400, dtype=torch.float64)).Q for _ in range(2))
    model = nn.ModuleDict({"law": nn.Linear(400, 400, bias=False), "few": nn.Linear(49, 60, bias=False)})
    with torch.no_grad():
        model["law"].weight.copy_((left * sigma) @ right.mT)
    run = audited(model)
    assert rows(run, "power_law_alpha").value["law.weight"] == pytest.approx(2.5, rel=0.02)
    expected = power_law(torch.from_numpy(np.linalg.svd(matrix(model["law"].weight), compute_uv=False) ** 2))
    assert expected is not None
    for name in ("alpha", "distance", "tail", "smallest"):
        assert rows(run, f"power_law_{name}").value["law.weight"] == pytest.approx(getattr(expected, name), rel=1e-6)
        assert math.isnan(rows(run, f"power_law_{name}").value["few.weight"])
        assert "50 eigenvalues" in rows(run, f"power_law_{name}").status["few.weight"]


def test_zero_deficient_and_broken_matrices() -> None:
    torch.manual_seed(5)
    model = nn.ModuleDict({name: nn.Linear(8, 6, bias=False) for name in ("zero", "thin", "nan", "inf", "good")})
    with torch.no_grad():
        model["zero"].weight.zero_()
        model["thin"].weight.copy_(torch.randn(6, 2) @ torch.randn(2, 8))
        model["nan"].weight[1, 1] = math.nan
        model["inf"].weight[1, 1] = math.inf
    run = audited(model)
    check(run, "good.weight", matrix(model["good"].weight))
    for name in ("largest_sv", "effective_rank", "frobenius_norm", "power_law_alpha"):
        assert rows(run, name).value[["nan.weight", "inf.weight"]].isna().all()
        assert (rows(run, name).status[["nan.weight", "inf.weight"]] == "it has entries that are not finite").all()
    assert rows(run, "frobenius_norm").value["zero.weight"] == 0
    assert rows(run, "numerical_rank").value["zero.weight"] == 0
    assert rows(run, "stable_rank").status["zero.weight"] == "the matrix is zero"
    assert rows(run, "numerical_rank").value["thin.weight"] == 2
    assert "lower rank than its shape" in rows(run, "condition_number").status["thin.weight"]
    assert "singular_values/nan.weight" not in run.arrays(PROBE)


def test_large_matrices_that_are_zero_or_broken() -> None:
    model = nn.ModuleDict({name: nn.Linear(600, 600, bias=False) for name in ("zero", "nan")})
    with torch.no_grad():
        model["zero"].weight.zero_()
        model["nan"].weight[1, 1] = math.nan
    run = audited(model, full=False)
    assert rows(run, "largest_sv").value["zero.weight"] == 0
    assert rows(run, "top5_sv_ratio").status["zero.weight"] == "the matrix is zero"
    assert rows(run, "largest_sv").status["nan.weight"] == "it has entries that are not finite"


def test_tied_weights_have_one_row_and_layers_are_chosen() -> None:
    model = tiny_gpt2(n_layer=4)
    scopes = set(rows(audited(model), "largest_sv").index)
    assert "transformer.wte.weight" in scopes
    assert "lm_head.weight" not in scopes
    few = set(rows(audited(model, parameters=["transformer.h"], max_layers=2), "largest_sv").index)
    assert {".".join(scope.split(".")[:3]) for scope in few} == {"transformer.h.0", "transformer.h.3"}
    one = audited(model, parameters="transformer.h.1.attn")
    assert set(rows(one, "largest_sv").index) == {
        f"transformer.h.1.attn.{name}.weight" for name in ("c_attn", "c_proj")
    }


def test_adapters_have_no_rows_but_saved_modules_do() -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = peft.get_peft_model(language_model(), config)
    assert list(rows(audited(model), "largest_sv").index) == ["lm_head.weight"]
    every = rows(audited(model, trained_only=False), "largest_sv")
    assert "model.layers.0.self_attn.q_proj.weight" in every.index
    assert not any("lora" in scope for scope in every.index)
    # the module and its trained copy would be called the same
    assert {scope for scope in every.index if "lm_head" in scope} == {
        "base_model.model.lm_head.original_module.weight", "base_model.model.lm_head.modules_to_save.default.weight",
    }  # fmt: skip


def test_what_is_no_matrix_says_why() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.Parameter(torch.randn(3, 4, 5))
            self.packed = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
            self.empty = nn.Parameter(torch.zeros(0, 4))
            self.vector = nn.Parameter(torch.randn(4))

    status = rows(audited(Odd(), trained_only=False), "largest_sv").status
    assert set(status.index) == {"experts", "packed", "empty"}
    assert "3 dimensions" in status["experts"]
    assert "uint8" in status["packed"]
    assert "no entries" in status["empty"]


def test_nothing_to_look_at_is_refused_when_the_session_opens(tmp_path: Path) -> None:
    frozen = peft.get_peft_model(language_model(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    optimizer = torch.optim.SGD([p for p in frozen.parameters() if p.requires_grad], lr=0.1)
    with pytest.raises(SelectionError, match=r"frozen.*trained_only=False"):
        ls.watch(frozen, optimizer, run=tmp_path / "r", probes=[ls.WeightSpectrum()])
    assert not (tmp_path / "r" / "records.jsonl").exists()
    with pytest.raises(SelectionError, match="two dimensions"):
        audited(nn.LayerNorm(4))
    with pytest.raises(SelectionError, match="no layer, module or parameter 'hed'"):
        audited(mlp(3, 2), parameters="hed")


def test_options_are_checked() -> None:
    for options in ({"leading": 0}, {"leading": True}, {"max_layers": -1}, {"tolerance": 1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ls.WeightSpectrum(**options)


def test_rounding_noise_is_no_tail() -> None:
    """The product of two vectors in float32 has rank 1: all other eigenvalues are what rounding left."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(90, 80, bias=False)
    column, row = torch.randn(80, 1, generator=generator), torch.randn(1, 90, generator=generator)
    model.weight.data = column @ row
    left = np.linalg.svd(matrix(model.weight), compute_uv=False)
    assert (left > 0).sum() == 80, "the test itself"
    run = audited(model)
    for name in ("alpha", "distance", "tail", "smallest"):
        found = rows(run, f"power_law_{name}")
        assert found.value.isna().all()
        assert found.status.item() == (
            "a power law is fitted to 50 eigenvalues σ² or more; with σ above 1e-06·σ₁ there is 1"
        )
    assert rows(audited(model, tolerance=0.0), "power_law_tail").value.item() >= 2, "as the option says"


def test_the_tail_is_that_of_what_rounding_has_not_made() -> None:
    """A product of rank 70 in float32 among 100 values. What `powerlaw` 2.0.0, the package behind weightwatcher, fits
    to the 70 eigenvalues: `powerlaw.Fit(eigenvalues)`."""
    generator = torch.Generator().manual_seed(1)
    place = torch.arange(70, dtype=torch.float64)
    eigenvalues = ((place + 0.5) / 70) ** (-1 / 0.8) * (1 + 0.2 * torch.sin(7 * place))
    u, v = (torch.linalg.qr(torch.randn(100, 70, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    model = nn.Linear(100, 100, bias=False)
    model.weight.data = (u * eigenvalues.sqrt() @ v.mT).float()
    run = audited(model)
    assert rows(run, "numerical_rank").value.item() == 70
    expected = {"alpha": 1.7891732968523315, "smallest": 1.1159769284994194, "distance": 0.0389945355544862, "tail": 63}
    for name, number in expected.items():
        assert rows(run, f"power_law_{name}").value.item() == pytest.approx(number, rel=1e-4), name
