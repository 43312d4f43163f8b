"""Code mode: the model writes Python that calls the agent's tools, and gets what it prints.

Start with `code_mode.py`, the plugin. `run.py` carries one code out: its calls are calls of tools like any other, on
record as steps. `code_process.py` holds the process in which the code runs, whose program is `interpreter.py`.
`decisions.py` has the interface that the model is shown, and how values cross.
"""
