"""Measurements that are run by command, never by the tests: `make bench`, or `python -m bench NAME ...`.

Each `bench_*.py` module has `main() -> int`, prints its machine, its numbers and the bar for each, and returns 0 when
every bar was met. `conservation.py` measures nothing: it is
the fault campaign of `make soak`.
Start reading in `__main__.py`.
"""
