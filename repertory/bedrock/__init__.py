"""Amazon Bedrock's memories: sessions and records in AgentCore Memory, and knowledge bases.

Start with `agentcore.py`. Here is what users construct; what speaks to the services stands in
`backends/sessions/agentcore` and `backends/memory`. The kernel knows none of it.
"""
