"""Language models behind the `Model` port.

What may enter: one provider per file (or family of files with its name), speaking to its service and turning what it
says into the port's events and our errors, once, at the edge. Decisions about turns, retries and windows stay out.

Start with `scripted.py`, the smallest whole model; then `bedrock/model.py`, whose neighbours build requests, hold
connections and name errors. `anthropic.py` and `openai.py` hold a provider each, and share what is alike in the
official SDKs (`sdk_client.py`, `sdk_stream.py`). What all three share is called by what it is (`content.py`,
`call_options.py`, `overflow.py`, `release.py`, `retry_after.py`).
"""
