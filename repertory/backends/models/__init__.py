"""Language models behind the `Model` port.

What may enter: one provider per file, speaking to its service and turning what that sends into the port's events and
our errors, once, at the edge. Decisions about turns, retries and windows stay out.

Start with `scripted.py`, the smallest whole model; then `provider.py`, what all providers share, and `bedrock.py`.
`anthropic.py` and `openai.py` are asked through official SDKs, which `sdk.py` does for both; `content.py` and
`message_events.py` are what they say alike. `embedders.py` makes vectors.
"""
