"""What a service over HTTP decides before anything is asked of a session: who may have which id, and how much.

Start with `tenants.py` (the stored id of a tenant's session), then `admission.py` (how many requests, how fast). The
protocols of others begin at `narration.py`, which tells a turn in an order that each of them can tell it in.
"""
