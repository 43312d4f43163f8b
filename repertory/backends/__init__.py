"""The outside world behind small ports: stores, models, tools.

`ports.py` says what the agent system needs. Each folder beside it implements one port and knows nothing of the others;
shared parts lie beside `ports.py`. Errors of client libraries are translated here, once, and libraries are imported
when first used. May import `ports.py`, `repertory.core` and `repertory.errors`.

Start with `ports.py`.
"""
