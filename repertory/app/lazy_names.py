"""Names that `Agent` and `Runtime` need when one is made, loaded when they are first used.

A program that imports what it calls does not pay for what runs it: the first agent does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secrets import token_hex as token_hex

    from repertory.actors.agent import CallSettings as CallSettings
    from repertory.actors.call import ChangeTimers as ChangeTimers
    from repertory.actors.call import CompleteTool as CompleteTool
    from repertory.actors.call import callers_call as callers_call
    from repertory.actors.context import AgentParts as AgentParts
    from repertory.actors.context import AgentSettings as AgentSettings
    from repertory.actors.hooks.calls import fire_sync as fire_sync
    from repertory.actors.hooks.events import AgentInitializedEvent as AgentInitializedEvent
    from repertory.actors.hooks.events import HookRegistry as HookRegistry
    from repertory.actors.hooks.events import SameHooks as SameHooks
    from repertory.actors.hooks.middleware import MiddlewareRegistry as MiddlewareRegistry
    from repertory.actors.in_memory_journal import InMemoryJournal as InMemoryJournal
    from repertory.actors.journal import ReadModel as ReadModel
    from repertory.actors.tool_registry import ToolRegistry as ToolRegistry
    from repertory.actors.tools import call_unrecorded as call_unrecorded
    from repertory.actors.turn_log import followed_call as followed_call
    from repertory.app.agent.context_plugins import managed_context as managed_context
    from repertory.app.agent.conversation_managers import another_manager as another_manager
    from repertory.app.agent.conversation_managers import chosen_manager as chosen_manager
    from repertory.app.agent.foreign_tools import ToolFolder as ToolFolder
    from repertory.app.agent.loop_metrics import EventLoopMetrics as EventLoopMetrics
    from repertory.app.agent.messages import EditableMessages as EditableMessages
    from repertory.app.agent.messages import edit_made as edit_made
    from repertory.app.agent.model_choice import default_model as default_model
    from repertory.app.agent.plugins import LatePlugins as LatePlugins
    from repertory.app.agent.plugins import Plugin as Plugin
    from repertory.app.agent.plugins import as_hooks as as_hooks
    from repertory.app.agent.plugins import check_plugins as check_plugins
    from repertory.app.agent.session import AgentCalls as AgentCalls
    from repertory.app.agent.session import AgentLife as AgentLife
    from repertory.app.agent.session import AgentSessionSpec as AgentSessionSpec
    from repertory.app.agent.session import calls_of as calls_of
    from repertory.app.agent.session import chosen_busy as chosen_busy
    from repertory.app.agent.session import chosen_handler as chosen_handler
    from repertory.app.agent.session import flush_at_exit as flush_at_exit
    from repertory.app.agent.session import for_traces as for_traces
    from repertory.app.agent.session import given_manager as given_manager
    from repertory.app.agent.session import one_of as one_of
    from repertory.app.agent.session import output_schema_of as output_schema_of
    from repertory.app.agent.session import read_call as read_call
    from repertory.app.agent.session import read_config as read_config
    from repertory.app.agent.session import refuse_other_ways as refuse_other_ways
    from repertory.app.agent.session import with_memory as with_memory
    from repertory.app.agent.tools import AgentTool as AgentTool
    from repertory.app.agent.tools import AgentTools as AgentTools
    from repertory.app.agent.tools import DirectTools as DirectTools
    from repertory.app.agent.tools import as_tools as as_tools
    from repertory.app.agent.tools import call_recorded as call_recorded
    from repertory.app.agent.tools import check_forgetful as check_forgetful
    from repertory.app.agent.tools import direct_use as direct_use
    from repertory.app.host.blocking import blocking_host as blocking_host
    from repertory.app.host.blocking import watch_state as watch_state
    from repertory.app.host.dispatcher import Awakening as Awakening
    from repertory.app.host.dispatcher import LookForDue as LookForDue
    from repertory.app.host.edge import inside_event_loop as inside_event_loop
    from repertory.app.host.host import Host as Host
    from repertory.app.host.host import HostSettings as HostSettings
    from repertory.app.host.live import answers_of as answers_of
    from repertory.app.host.live import view_of as view_of
    from repertory.app.host.live import waits_for_store as waits_for_store
    from repertory.app.host.metrics import unwatch_host as unwatch_host
    from repertory.app.host.metrics import watch_host as watch_host
    from repertory.app.host.peer_calls import boxed_call as boxed_call
    from repertory.app.host.peer_calls import unboxed_call as unboxed_call
    from repertory.app.host.peers import Cluster as Cluster
    from repertory.app.host.reports import drain_report as drain_report
    from repertory.app.host.reports import runtime_stats as runtime_stats
    from repertory.app.host.session import ActivationLock as ActivationLock
    from repertory.app.host.session import meter_provider as meter_provider
    from repertory.app.host.session import wall_clock as wall_clock
    from repertory.app.host.told import told_here as told_here
    from repertory.app.host.told import told_stored as told_stored
    from repertory.app.sessions.hooked import hooked_or_placed as hooked_or_placed
    from repertory.app.sessions.sessions import PlacedSession as PlacedSession
    from repertory.app.sessions.sessions import WakingPlace as WakingPlace
    from repertory.app.sessions.sessions import check_place as check_place
    from repertory.app.sessions.sessions import check_placement as check_placement
    from repertory.app.toolbox.sandbox import check_sandbox as check_sandbox
    from repertory.app.toolbox.this_machine import ThisMachine as ThisMachine
    from repertory.core.callers import check_sources as check_sources
    from repertory.core.ids import check_id as check_id
    from repertory.core.limits import read_limits as read_limits
    from repertory.core.memory.progress import together as together
    from repertory.core.messages import check_messages as check_messages
    from repertory.core.messages import check_system_prompt as check_system_prompt
    from repertory.core.messages import copy_message as copy_message
    from repertory.core.messages import repair as repair
    from repertory.core.messages import system_text as system_text
    from repertory.core.retry import check_retry as check_retry
    from repertory.core.serving.tenants import stored_id as stored_id
    from repertory.core.state import agent_state as agent_state
    from repertory.core.timers import DueTimes as DueTimes
    from repertory.core.told_turn import AskTurn as AskTurn
    from repertory.core.tools import late_result as late_result
    from repertory.core.turn import StopReason as StopReason
    from repertory.core.turn_start import DIRECT_WHILE_BUSY as DIRECT_WHILE_BUSY
    from repertory.core.turn_start import NO_SUCH_TURN as NO_SUCH_TURN
    from repertory.core.turn_start import asks_with as asks_with
    from repertory.core.turn_start import read_prompt as read_prompt
    from repertory.core.turn_start import way_of_call as way_of_call
    from repertory.core.unfinished import pending_turn as pending_turn
    from repertory.runtime.host_task import HostTask as HostTask

HOMES = {
    "ActivationLock": "repertory.app.host.session",
    "AgentCalls": "repertory.app.agent.session",
    "AgentInitializedEvent": "repertory.actors.hooks.events",
    "AgentLife": "repertory.app.agent.session",
    "AgentParts": "repertory.actors.context",
    "AgentSessionSpec": "repertory.app.agent.session",
    "AgentSettings": "repertory.actors.context",
    "AgentTool": "repertory.app.agent.tools",
    "AgentTools": "repertory.app.agent.tools",
    "CallSettings": "repertory.actors.agent",
    "ChangeTimers": "repertory.actors.call",
    "CompleteTool": "repertory.actors.call",
    "DIRECT_WHILE_BUSY": "repertory.core.turn_start",
    "DirectTools": "repertory.app.agent.tools",
    "DueTimes": "repertory.core.timers",
    "AskTurn": "repertory.core.told_turn",
    "told_stored": "repertory.app.host.told",
    "told_here": "repertory.app.host.told",
    "EditableMessages": "repertory.app.agent.messages",
    "HookRegistry": "repertory.actors.hooks.events",
    "Host": "repertory.app.host.host",
    "Awakening": "repertory.app.host.dispatcher",
    "LookForDue": "repertory.app.host.dispatcher",
    "Cluster": "repertory.app.host.peers",
    "boxed_call": "repertory.app.host.peer_calls",
    "unboxed_call": "repertory.app.host.peer_calls",
    "HostSettings": "repertory.app.host.host",
    "HostTask": "repertory.runtime.host_task",
    "InMemoryJournal": "repertory.actors.in_memory_journal",
    "LatePlugins": "repertory.app.agent.plugins",
    "MiddlewareRegistry": "repertory.actors.hooks.middleware",
    "NO_SUCH_TURN": "repertory.core.turn_start",
    "PlacedSession": "repertory.app.sessions.sessions",
    "WakingPlace": "repertory.app.sessions.sessions",
    "Plugin": "repertory.app.agent.plugins",
    "ReadModel": "repertory.actors.journal",
    "SameHooks": "repertory.actors.hooks.events",
    "StopReason": "repertory.core.turn",
    "ThisMachine": "repertory.app.toolbox.this_machine",
    "EventLoopMetrics": "repertory.app.agent.loop_metrics",
    "ToolFolder": "repertory.app.agent.foreign_tools",
    "ToolRegistry": "repertory.actors.tool_registry",
    "agent_state": "repertory.core.state",
    "stored_id": "repertory.core.serving.tenants",
    "another_manager": "repertory.app.agent.conversation_managers",
    "as_hooks": "repertory.app.agent.plugins",
    "as_tools": "repertory.app.agent.tools",
    "blocking_host": "repertory.app.host.blocking",
    "call_recorded": "repertory.app.agent.tools",
    "call_unrecorded": "repertory.actors.tools",
    "callers_call": "repertory.actors.call",
    "calls_of": "repertory.app.agent.session",
    "chosen_busy": "repertory.app.agent.session",
    "chosen_handler": "repertory.app.agent.session",
    "check_forgetful": "repertory.app.agent.tools",
    "check_id": "repertory.core.ids",
    "check_messages": "repertory.core.messages",
    "check_place": "repertory.app.sessions.sessions",
    "check_placement": "repertory.app.sessions.sessions",
    "check_plugins": "repertory.app.agent.plugins",
    "check_retry": "repertory.core.retry",
    "check_sandbox": "repertory.app.toolbox.sandbox",
    "check_sources": "repertory.core.callers",
    "check_system_prompt": "repertory.core.messages",
    "chosen_manager": "repertory.app.agent.conversation_managers",
    "copy_message": "repertory.core.messages",
    "default_model": "repertory.app.agent.model_choice",
    "direct_use": "repertory.app.agent.tools",
    "drain_report": "repertory.app.host.reports",
    "edit_made": "repertory.app.agent.messages",
    "fire_sync": "repertory.actors.hooks.calls",
    "flush_at_exit": "repertory.app.agent.session",
    "for_traces": "repertory.app.agent.session",
    "given_manager": "repertory.app.agent.session",
    "hooked_or_placed": "repertory.app.sessions.hooked",
    "inside_event_loop": "repertory.app.host.edge",
    "managed_context": "repertory.app.agent.context_plugins",
    "one_of": "repertory.app.agent.session",
    "output_schema_of": "repertory.app.agent.session",
    "followed_call": "repertory.actors.turn_log",
    "read_call": "repertory.app.agent.session",
    "asks_with": "repertory.core.turn_start",
    "read_prompt": "repertory.core.turn_start",
    "way_of_call": "repertory.core.turn_start",
    "refuse_other_ways": "repertory.app.agent.session",
    "read_config": "repertory.app.agent.session",
    "read_limits": "repertory.core.limits",
    "repair": "repertory.core.messages",
    "runtime_stats": "repertory.app.host.reports",
    "system_text": "repertory.core.messages",
    "together": "repertory.core.memory.progress",
    "answers_of": "repertory.app.host.live",
    "waits_for_store": "repertory.app.host.live",
    "late_result": "repertory.core.tools",
    "pending_turn": "repertory.core.unfinished",
    "view_of": "repertory.app.host.live",
    "unwatch_host": "repertory.app.host.metrics",
    "watch_host": "repertory.app.host.metrics",
    "token_hex": "secrets",
    "meter_provider": "repertory.app.host.session",
    "wall_clock": "repertory.app.host.session",
    "watch_state": "repertory.app.host.blocking",
    "with_memory": "repertory.app.agent.session",
}
"""Name to the module that has it."""


def __getattr__(name: str) -> object:
    home = HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
