"""The outside world behind small ports: stores, models, tools.

`ports.py` says what the agent system asks for; each folder beside it holds implementations of one port, which know
nothing of each other; what several of them need lies beside `ports.py`. Errors of client libraries are translated here,
once, and libraries are imported when first used. May import `ports.py`, `repertory.core` and `repertory.errors`.

Start with `ports.py`.
"""
