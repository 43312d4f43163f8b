"""Webhooks: brings the events of sessions to addresses, signed as the Standard Webhooks specification says.

Start with `sending.py`, which makes a request for an event. `decisions.py` signs it, and says what an answer means. The
kernel decides when an event is sent, and again (`core/deliveries.py`).
"""
