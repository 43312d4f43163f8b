"""Testing actors: clocks that jump, probes that record, faults that come from a seed.

Anything that helps to test actors and knows nothing of agents may enter; the runtime imports nothing from here.
Start with `virtual_time.py` (how a test's hour takes milliseconds), then `probe.py` and `faults.py`.
"""
