"""From `repertory.toml` to a `Runtime`: files, secrets of the environment, and objects of Python modules.

What the file may hold, and what is wrong with it, is decided in `decisions/`. Start reading at `building.py`.
"""
