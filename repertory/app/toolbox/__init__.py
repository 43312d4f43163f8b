"""Example tools, safe enough to be used for real: arithmetic, the time, and files below one folder.

What may enter: tools made with `@tool` that need nothing but the standard library. They are used by the command line
and the demo; services bring their own. Start reading at `calculator.py`.
"""
