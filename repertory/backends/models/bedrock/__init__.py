"""Models of Amazon Bedrock, and its embedder.

Start with `model.py`.
"""
