"""`python -m learnscope.cli`"""

import sys

from learnscope.cli import main

sys.exit(main())
