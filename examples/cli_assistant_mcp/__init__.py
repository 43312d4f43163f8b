"""An assistant for the command line, whose tools come from an MCP server."""
