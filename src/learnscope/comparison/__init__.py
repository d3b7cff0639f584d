"""Runs side by side: their settings, the step at which they part, and how far apart they end.

Not called `compare`: a submodule of that name would hide the function.
"""

from learnscope.comparison.compared import Comparison, compare

__all__ = ["Comparison", "compare"]
