"""The errors of a ledger."""

from __future__ import annotations

from learnscope.store.backend import RunError


class LedgerError(RunError, ValueError):
    """A batch or a file that a ledger refuses; the message says why."""


class IdError(LedgerError):
    """An id was used for different examples, so that its statistics would be meaningless."""


def reused(what: str, ids: list[int]) -> IdError:
    """The error for ids that came again with another `what`."""
    shown = ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")
    return IdError(
        f"{len(ids)} of the batch's ids came with another {what} than before (ids {shown}): an id must always name the "
        "same example, and a position in a shuffled loader does not. Wrap the data set in learnscope.IndexedDataset, "
        f"which gives every item its own index. If the {what}s of an example change on purpose"
        f"{', as augmented ones do, check_inputs=False.' if what == 'input' else ', check_ids=False.'}"
    )
