"""`Runtime`: agents, graphs and swarms in a program that serves many sessions.

Start with `runtime.py`; `hosted.py` has what it gives for an agent, `hosted_orchestrators.py` for a graph or a swarm.
"""
