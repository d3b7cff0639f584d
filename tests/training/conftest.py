from pathlib import Path

import pytest

from training.small import hardly_trained_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model, hardly trained."""
    return hardly_trained_base(tmp_path_factory.mktemp("base") / "base_model")
