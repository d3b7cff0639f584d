from collections.abc import Iterator

import pytest

from learnscope.model.cost import exported, layer_times, speed, timing


@pytest.fixture(scope="module", autouse=True)
def _whole_timing(_short_timing: None) -> Iterator[None]:
    """Here the budgets themselves are tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "take_turns", timing.take_turns)
        patch.setattr(layer_times, "take_turns", timing.take_turns)
        patch.setattr(exported, "take_pairs", timing.take_pairs)
        yield
