"""`python -m learnscope.trackers.test_integration`: both trackers on every family, see `learnscope.trackers.check`."""

import sys

from learnscope.trackers.check import main

if __name__ == "__main__":
    sys.exit(main())
