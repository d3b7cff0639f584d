"""The error of the training command."""

from learnscope.sources.errors import first_line

__all__ = ["TrainError", "first_line"]


class TrainError(ValueError):
    """The training cannot be done as asked: the message names the cause and the cure."""
