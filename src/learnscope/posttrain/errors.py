"""The error and the warning of examining finished models."""


class PosttrainError(ValueError):
    """A model or data that cannot be examined as asked: the message names the cause and the cure."""


class PosttrainWarning(UserWarning):
    """Something was assumed that the numbers depend on."""
