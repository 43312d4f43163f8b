// The official client of AG-UI: makes the runs that it is told of, and says what it was sent and what it has then.
//
// Reads {url, threadId, runs: [{say?, resume?, runId?}]} on standard input.

import { HttpAgent } from "@ag-ui/client";
import { readFileSync } from "node:fs";

const { url, threadId, runs } = JSON.parse(readFileSync(0, "utf8"));
const agent = new HttpAgent({ url, threadId });
const told = [];
for (const [number, run] of runs.entries()) {
  const events = [];
  if (run.say !== undefined) agent.addMessage({ id: `said-${number}`, role: "user", content: run.say });
  try {
    await agent.runAgent(
      { runId: run.runId ?? `run-${number}`, ...(run.resume ? { resume: run.resume } : {}) },
      { onEvent: ({ event }) => void events.push(event) },
    );
    told.push({ events, messages: structuredClone(agent.messages), state: structuredClone(agent.state) });
  } catch (error) {
    told.push({ events, error: String(error), status: error.status ?? null });
  }
}
console.log(JSON.stringify(told));
