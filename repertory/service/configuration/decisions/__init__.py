"""`repertory.toml`: what stands in it, where each key stands in its text, and what is wrong with it.

Only decisions about a text and its values belong here: nothing reads files, the environment or modules. Start reading
at `tables.py`, which is the one list of keys; `reading.py` makes its values of a text.
"""
