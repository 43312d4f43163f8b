"""`python -m examples.agent_with_a_budget`."""

import sys

from .shared_agent import main

sys.exit(main())
