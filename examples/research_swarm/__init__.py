"""A research team: a planner, a researcher and a writer, who hand a question over to each other.

`team.py` has the agents with their tools, `__main__.py` the command line. `library/` is what they search.
"""
