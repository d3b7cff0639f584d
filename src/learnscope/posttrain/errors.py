"""The one error of examining finished models, and what is said where something had to be assumed."""


class PosttrainError(ValueError):
    """A model or data that cannot be examined as asked: the message names the cause and the cure."""


class PosttrainWarning(UserWarning):
    """Something was assumed that the numbers depend on."""
