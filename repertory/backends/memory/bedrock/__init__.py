"""Knowledge bases of Amazon Bedrock."""
