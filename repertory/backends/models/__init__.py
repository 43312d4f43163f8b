"""Language models behind the `Model` port.

What may enter: one provider per file (or family of files with its name), speaking to its service and turning what it
says into the port's events and our errors, once, at the edge. Decisions about turns, retries and windows stay out.

Start with `scripted.py`, the smallest whole model; then `bedrock.py`, whose neighbours build requests
(`bedrock_request`), hold connections (`bedrock_client`), read event streams (`bedrock_stream`) and name errors
(`bedrock_errors`). `anthropic.py` and `openai.py` have a request and a stream file each, and share what is alike in the
official SDKs (`sdk_client`, `sdk_stream`, `sdk_errors`). What all three share is called by what it is (`content`,
`call_options`, `loop_clients`, `overflow`, `release`, `retry_after`).
"""
