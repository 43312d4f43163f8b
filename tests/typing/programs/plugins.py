"""A program with a plugin: hooks and a tool in one object."""

from repertory import AfterInvocationEvent, Agent, BeforeModelCallEvent, Plugin, ScriptedModel, hook, tool


class Style(Plugin):
    name = "style"

    def __init__(self, tone: str) -> None:
        super().__init__()
        self.tone, self.calls = tone, 0

    @hook
    def before(self, event: BeforeModelCallEvent) -> None:
        self.calls += 1

    @hook
    async def after(self, event: AfterInvocationEvent) -> None:
        if event.result is not None and event.result.stop_reason == "end_turn":
            print("ended:", event.result.text)

    @tool(effects=False)
    def rules(self) -> str:
        """The rules of style."""
        return self.tone


def main() -> None:
    style = Style("brief")
    agent = Agent(ScriptedModel(["Yes."]), plugins=[style], system_prompt="Be brief.")
    agent("Are you there?")
    print(style.calls, agent.system_prompt, agent.tool_names)


if __name__ == "__main__":
    main()
