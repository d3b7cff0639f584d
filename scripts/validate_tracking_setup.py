"""Checks that a training with trackers can run here, without a GPU: `python scripts/validate_tracking_setup.py`."""

import sys

try:
    from learnscope.trackers.setup_check import main
except ImportError as error:
    print(f"learnscope cannot be imported ({error}): pip install 'learnscope[hf]', or -e '.[hf]' in its folder")
    sys.exit(1)

if __name__ == "__main__":
    sys.exit(main())
