"""A bot behind signed webhooks, as Slack sends them: it answers each event once, however often it is sent.

`bot.py` checks webhooks, queues them, and has the worker that answers; `replies.py` sends the answers; `__main__.py`
starts the server, or sends it a webhook as Slack would.
"""
