"""Train an adapter, tracked on request: `python run.py --help`. The same as `learnscope train`."""

import sys

from learnscope.cli.train import main

if __name__ == "__main__":
    sys.exit(main(prog="python run.py"))
