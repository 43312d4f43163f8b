"""`python -m examples.rag_over_a_folder`."""

import sys

from .librarian import main

sys.exit(main())
