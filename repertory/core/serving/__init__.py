"""What a service over HTTP decides before anything is asked of a session: who may have which id, and how much.

Start with `tenants.py` (the stored id of a tenant's session), then `admission.py` (how many requests, how fast).
"""
