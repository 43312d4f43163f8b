"""Deciding what the model is shown. Pure: a manager's settings and the shown messages in, a `WindowPlan` out.

Start with `decision.py` (the decision as data and how it is applied), then `sliding.py`.
"""
