"""Mistakes around an agent, which mypy and pyright must find. An ignore that is not needed is an error."""

# pyright: reportUnnecessaryTypeIgnoreComment=true
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from pydantic import BaseModel

from repertory import Agent, AgentSpec, BeforeToolCallEvent, Graph, Runtime, ScriptedModel, ToolContext, tool


class Person(BaseModel):
    name: str
    age: int


@tool
def add(a: int, b: int) -> int:
    return a + b


def plain(a: int) -> int:
    return a


agent = Agent(ScriptedModel(["hello"]))
Agent(sistem_prompt="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Agent(busy="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent(tools=[plain])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
Agent(tools=[add, 5])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
Agent(tools=add)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent(callback_handler=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Agent(system_prompt=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
agent("hi", limit=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
agent("hi", limits={"rounds": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
agent("hi", busy="later")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
agent("hi", timeout_s="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
agent([{"txt": "hi"}])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
agent([{"role": "usr", "content": []}])  # type: ignore[typeddict-item]  # pyright: ignore[reportArgumentType]
AgentSpec(durability="best")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
AgentSpec(tools=[plain])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
agent.sate.get("x")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
agent.cancel(reason="enough")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def results(prompt: str) -> None:
    result = agent(prompt)
    text: int = str(result)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(text, result.stop_reason == "end_trun")  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
    print(result.stop_raeson)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(result.txt)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    result.text = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    print(result.message["content"])  # type: ignore[index]  # pyright: ignore[reportOptionalSubscript]
    print(result.interrupts[0].reson)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    typed = agent(prompt, structured_output_model=Person)
    print(typed.structured_output.nme)  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
    count: str = typed.structured_output.age  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(count)
    agent(prompt, structured_output_model=Person(name="x", age=1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def streams(prompt: str) -> None:
    async for event in agent.stream_async(prompt):
        if "dta" in event:  # to pyright what follows cannot be reached
            print(event["dta"])  # type: ignore[typeddict-item]
        if "data" in event:
            number: int = event["data"]  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
            print(number, event["date"])  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
        if "result" in event:
            print(event["result"].stop_resaon)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        if "message" in event:
            print(event["message"]["rle"])  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
        if "tool_started" in event:
            print(event["tool_started"]["input_"])  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
        late: int = event.get("data", "")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        print(late)
    async for piece in agent.stream_text(prompt):
        print(piece["data"])  # type: ignore[index]  # pyright: ignore[reportArgumentType]
    for wrong in agent.stream_async(prompt):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        print(wrong)


async def runs(graph: Graph, runtime: Runtime) -> None:
    async for event in graph.stream_async("x"):
        print(event["type"] == "multiagent_node_begin")  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
        if event["type"] == "multiagent_node_start":
            print(event["node"])  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    answer = await runtime.agent(AgentSpec()).session("s").invoke("hi", structured_output_model=Person)
    print(answer.structured_output.address)  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
    person: Person = await agent.invoke_async("hi", structured_output_model=Person)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(person)
    print(agent.invoke_async("hi").text)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def refuse(event: BeforeToolCallEvent) -> None:
    event.cancel_tool = 3  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    allowed: str = event.interrupt("allow", response_model=bool)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(allowed)


@tool
def ask(tool_context: ToolContext) -> str:
    person = tool_context.interrupt("who", response_model=Person)
    print(person.adress)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    tool_context.interrupt(name=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return person.age  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
