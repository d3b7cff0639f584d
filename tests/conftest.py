import os

# Tests run two at a time on two cores; more threads than that only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# TRL tells the hub of every trainer that is made; tests need no network and use none.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)
