"""Python functions as tools that the model may call, their schemas, and the threads for synchronous ones.

What belongs here: implementations of the `Tool` port and what they need. pydantic is imported by `input_schema.py` and
`structured_output.py` alone, which are imported when first needed. Start reading at `function_tool.py`.
"""
