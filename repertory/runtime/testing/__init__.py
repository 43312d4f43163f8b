"""Testing actors: clocks that jump, probes that record, faults that come from a seed.

Code that helps to test actors and knows nothing of agents belongs here; the runtime imports nothing from it. Start with
`virtual_time.py` (how a test's hour takes milliseconds), then `probe.py` and `faults.py`.
"""
