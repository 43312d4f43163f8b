"""Supervised actors on asyncio, uvloop and trio. Knows nothing of agents.

Code that any program of actors needs belongs here; code that only agents need does not. It imports `repertory.errors`
and anyio, nothing else. Start with `actor.py` (what an actor is), `ref.py` (how messages are sent) and `cell.py` (how
one runs); then `children.py` (supervision), `system.py` and `drain.py`. Pure decisions: `lifecycle.py`, the deadlock
check of `message.py`, what `children.py` does about a child that ended, and how `drain.py` shares its time.
"""
