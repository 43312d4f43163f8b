"""Supervised actors on asyncio, uvloop and trio. Knows nothing of agents.

What any program of actors needs may enter; what only agents need may not. It imports `repertory.errors` and anyio,
nothing else. Start with `actor.py` (what an actor is), `ref.py` (how it is spoken to) and `cell.py` (how one runs);
then `children.py` (supervision), `system.py` and `drain.py`. Decisions are pure: `lifecycle.py` and
`call_context.py`, what `children.py` does about a child that ended, and how `drain.py` shares its time.
"""
