"""`python -m examples.migrated_from_strands` runs the program after the move, as `python after.py` does."""

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent

sys.path.insert(0, str(FOLDER))
runpy.run_path(str(FOLDER / "after.py"), run_name="__main__")
