"""A thin connection to PostgreSQL for every event loop, over psycopg's protocol generators; no threads of its own.

What belongs here: addresses, connections, a pool, values on the wire, the server's errors as ours, and how tables get
their version and lose what was destroyed. What is stored and in which tables is the business of the stores that use it.

Start with `connection.py`. Importing anything here but `address.py` needs the extra `postgres`.
"""
