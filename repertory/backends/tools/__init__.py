"""What the model may call: functions turned into tools, their schemas, and the threads that synchronous ones run in.

What may enter: implementations of the `Tool` port and what they need. pydantic is imported by `input_schema.py` alone,
and that file is imported when a schema is first needed. Start reading at `function_tool.py`.
"""
