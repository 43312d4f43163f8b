"""Knowledge bases of Amazon Bedrock.

Start with `store.py`.
"""
