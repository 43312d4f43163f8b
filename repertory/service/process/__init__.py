"""`repertory serve`: one process, or several behind one socket, under a parent that replaces those that end.

What is served comes from elsewhere (`service/http`, `inspector`). Start reading at `child.py`, the process that
answers; `parent.py` carries out what `service/decisions/fleet.py` decides.
"""
