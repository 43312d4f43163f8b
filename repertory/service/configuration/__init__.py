"""The `Runtime` that `repertory.toml` describes: files, secrets of the environment, objects of Python modules.

What the file may hold, and what is wrong with it, is decided in `decisions/`. Start reading at `building.py`.
"""
