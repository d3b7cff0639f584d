"""The one error of the training command."""


class TrainError(ValueError):
    """The training cannot be done as asked: the message names the cause and the cure."""


def first_line(error: BaseException) -> str:
    """Other packages explain at length; the beginning of their first line names the cause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
