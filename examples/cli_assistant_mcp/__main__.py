"""`python -m examples.cli_assistant_mcp`."""

import sys

from .assistant import main

sys.exit(main())
