"""Examine a finished model: `python analyze_model.py --help`. The same as `learnscope audit`."""

import sys

from learnscope.cli.audit import main
from learnscope.posttrain import ModelAnalyzer

__all__ = ["ModelAnalyzer"]

if __name__ == "__main__":
    sys.exit(main(prog="python analyze_model.py"))
