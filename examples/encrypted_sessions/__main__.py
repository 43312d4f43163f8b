"""`python -m examples.encrypted_sessions`."""

import sys

from .advice_line import main

sys.exit(main())
