"""Example tools, safe for real use: arithmetic, the time, and files below one folder.

Only tools made with `@tool` that need nothing but the standard library belong here. The command line and the demo use
them; services bring their own. Start reading at `calculator.py`.
"""
