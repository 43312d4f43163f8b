"""`python -m examples.evaluation_by_replay`."""

import sys

from .evaluation import main

sys.exit(main())
