"""A support desk: it remembers each customer, and a person approves what costs money.

`desk.py` has the agent with its tools, `shop.py` the orders and refunds behind them, `__main__.py` the command line.
"""
