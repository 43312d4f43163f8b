"""`repertory serve`: one process, or several behind one socket, under a parent that replaces those that end.

What is served comes from elsewhere (`app/asgi`, `app/inspector`). Start reading at `worker.py`, the process that
answers; `parent.py` carries out what `core/serving/fleet.py` decides.
"""
