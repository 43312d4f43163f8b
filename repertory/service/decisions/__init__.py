"""Decisions of a service over HTTP before anything is asked of a session, and of the protocols that it speaks.

The ids of tenants stand in `core/tenants.py`, their limits in `core/admission.py`. The protocols of others begin at
`narration.py`, which tells a turn in an order that each of them can tell it in.
"""
