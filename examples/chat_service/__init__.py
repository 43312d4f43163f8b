"""Chat in a browser, served by any number of processes, on one machine or on several, which share their sessions.

`service.py` has the runtime and the application, `page.html` what the browser shows, `__main__.py` starts a server.
"""
