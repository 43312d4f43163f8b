"""Agents over HTTP, and the process that serves them.

`http/` is a `Runtime` as an ASGI application with its own routes and three protocols, `process/` is `repertory serve`,
`configuration/` makes a `Runtime` of `repertory.toml`, and `decisions/` has what all of them decide, without I/O.
"""
