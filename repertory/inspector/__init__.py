"""The inspector: pages over stored sessions and over a live runtime.

Start with `inspector.py`: it is the ASGI application. `guard.py` decides who may see and change what; `timeline.py`
makes what a page shows of records; `live.py` is what moves. `templates/` and `static/` hold no logic of their own.
Needs the extra `inspect`; nothing here is loaded before it is used.
"""
