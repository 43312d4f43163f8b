"""The command line.

Start with `main.py`; a group of commands is a module.
"""
