"""Tools to begin with: arithmetic, the time, files, commands, notes, the web, waiting and asking, other agents.

Only tools made with `@tool` belong here; services bring their own. Those of `commands.py` and `web.py` do what this
process may do. Start reading at `calculator.py`.
"""
