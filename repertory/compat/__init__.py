"""The Strands Agents SDK's names and manners, for its programs: `repertory.strands`.

Start with `table.py`: each path of the SDK, and what it is here. `modules.py` makes modules of it, `migration.py`
rewrites the imports of programs, and the other files have the classes that plain Repertory has no use for.
"""
