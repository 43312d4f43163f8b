"""Language models behind the `Model` port.

What belongs here: one provider per file, which calls its service and translates the answers into the port's events and
our errors, once, at the edge. Decisions about turns, retries and windows stay out.

Start with `scripted.py`, the smallest whole model; then `provider.py`, the one base of all providers, and `ollama.py`.
`sdk.py` asks through official SDKs; `answer_reader.py` is the base of all readers of answers, and `content.py` spells
blocks for requests. `compatible.py` has more services with OpenAI's protocol, and `caching.py` decides where cache
points stand.
`embedders.py` makes vectors.
"""
