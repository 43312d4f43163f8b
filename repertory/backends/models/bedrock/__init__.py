"""Models of Amazon Bedrock, and its embedder."""
