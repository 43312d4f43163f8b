"""Cassettes: recorded exchanges with a model service, as a file and as values, without their secrets. Pure.

`tape.py` is the file, and says which recorded exchange answers a request; `scrubbing.py` takes secrets out of both.
`repertory/testing/cassette.py` records and plays.
"""
