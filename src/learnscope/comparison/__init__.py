"""Runs side by side: where they were set up differently, where they part, how far apart they end.

Not called `compare`, which is the function: a submodule of that name would hide it.
"""

from learnscope.comparison.compared import Comparison, compare

__all__ = ["Comparison", "compare"]
