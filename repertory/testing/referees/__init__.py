"""Referees: what each model service accepts, as pure functions over requests.

What belongs here: one module per wire API, with a table of rules and a function that looks at a whole request. A rule
names the public source that says or shows what the service does; a rule without a source does not enter. No clock, no
network, no SDK. Start with `rules.py` (what a rule and a refusal are), then `services.py` (all referees by name).
"""
