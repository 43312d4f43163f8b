"""Language models behind the `Model` port.

What belongs here: one provider per file, which calls its service and translates the answers into the port's events and
our errors, once, at the edge. Decisions about turns, retries and windows stay out.

Start with `scripted.py`, the smallest whole model; then `provider.py`, what all providers share, and `bedrock.py`.
`anthropic.py` and `openai.py` use official SDKs, through `sdk.py`; they share `content.py`. `compatible.py` has more
services with OpenAI's protocol, and `caching.py` decides where cache points stand.
`embedders.py` makes vectors.
"""
