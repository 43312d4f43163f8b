"""A `Runtime` as an HTTP service.

Start with `service.py`: who calls, what they may reach, and how much of it. `http_api.py` is the table of our own
routes, from which `openapi.py` makes the document; `turns.py` begins and follows turns. The protocols of others are
`openai.py`, `a2a.py` and `ag_ui.py`, over `narrating.py`. The public names are in `repertory.asgi`. Needs the extra
`serve`; nothing here is loaded before it is used.
"""
