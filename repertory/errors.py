"""Every error that a caller can meet, grouped by what the caller does next.

    RepertoryError
    |- Retryable                    the same call may succeed later
    |  |- Unavailable               a store, model or service cannot be reached, or broke off
    |  |  |- StoreUnavailable *
    |  |  |- ModelStreamBroken +    the model stopped in the middle of an answer
    |  |  |- HttpRequestError       a web address gave nothing, or refused (RuntimeError)
    |  |  |  `- WebFetchError       a page could not be read (ValueError)
    |  |  `- ClientNotOpen (NotReady) see there
    |  |- Throttled                 slow down; `retry_after_s` says how long, when known
    |  |  |- QuotaExhausted         the same, said by the quota of this program: the service was not asked
    |  |  `- StoreThrottled *
    |  |- AskTimeout                no answer in time; the work may still happen
    |  |- SessionBusy * (Conflict)  another live process owns the session: wait, or take it over
    |  `- MailboxFull               the receiver is behind; wait or shed load
    |- Conflict                     another process or caller was first: reload, then decide
    |  |- AlreadyExists *
    |  |- PreconditionFailed *
    |  |- LeaseLost *               another owner has taken the session over: stop writing
    |  |- SessionBusy * (Retryable) see above
    |  |- AgentBusy                 a turn runs and the busy policy says reject (= ConcurrencyException)
    |  `- RunUnfinished             an orchestrator's run still has work to do: resume it, or abandon it
    |- Gone                         it does not exist, or no longer
    |  |- NotFound
    |  |  |- StoreNotFound *      no such session, snapshot, bucket or memory
    |  |  |- InterruptNotFound (KeyError) no tool waits for this answer: answer a pending interrupt
    |  |  `- PathNotFound (FileNotFoundError) a sandbox has no such file or folder
    |  |- InterruptExpired          no person answered in time: call again without an answer
    |  |- ActorDead                 the actor stopped before it answered
    |  |- StreamClosed              the reader of a stream has left
    |  `- KeyErased *              the session's key was erased: nobody can read it any more
    |- Invalid (ValueError)         the caller's mistake: fix the call
    |  |- NotReady                  the agent has not been opened yet
    |  |  `- ClientNotOpen (Unavailable) a client of a tool server is used outside its block
    |  |- InterruptsWaiting (TypeError)   a person has to answer first
    |  |- MayNotAnswer (PermissionError) the question is for other people: one of them answers
    |  |- StepsChanged (RuntimeError) a tool that was cut off asks for other steps than before: bring its program back
    |  |- InvalidKey *              a storage takes no such key: change it
    |  |- EncryptionNeeded *        the session is encrypted: open its place with `encryption=`
    |  |- SnapshotException *       this snapshot cannot be loaded here: choose another one
    |  `- UnpairedTools             tool uses and tool results do not match
    |- Failed                       an actor, model, hook, node or store tried and failed; `__cause__` says why
    |  |- ActorFailed               a handler raised
    |  |- CassetteMismatch          a test asks a model what its recording does not have: change it, or record anew
    |  |- StartFailed               an actor did not start
    |  |- CommandFailed             a command could not be run (RuntimeError)
    |  |- FileFailed                a file of a sandbox could not be read or changed (OSError)
    |  |- Deadlock                  the ask would wait for itself
    |  |- ModelFailed +             the provider refused, or its answer cannot be read
    |  |  `- ModelRefused +         the model, or its provider's filter, would not answer this
    |  |- StructuredOutputException the model gave no valid structured output
    |  |- AggregateMemoryError      some memory stores failed to write; `errors` holds their errors
    |  |- ExtractionFailed          an extractor could not turn messages into memories
    |  |- HookFailed                a callback that guards a step raised
    |  |  `- MiddlewareFailed       middleware around a model or tool call raised, or gave no result (RuntimeError)
    |  |- StepFailed                a step of a tool failed for good (RuntimeError)
    |  |- NodeFailed                a node of an orchestrator failed, and with it the run (RuntimeError)
    |  `- StoreFailed *             a session store refused the request: change rights, credentials or place
    |     |- Unwritable *           a store cannot write these records, and would fail again
    |     `- KeyMissing *           the key of an encrypted session is not where its keys are: bring it back
    |- Corrupt *                    stored data is damaged: a human must look
    |  `- CorruptJournal *
    |- LimitReached                 a bound that the caller or the provider has set
    |  |- StoreLimitReached *       a quota of the service behind the session store is used up
    |  |- ContextWindowOverflowException
    |  |- MaxTokensReachedException the answer was cut off at the token limit; call with a prompt to continue
    |  |- RestartLimitReached
    |  |- CommandTimeout            a command did not end in time, and was killed (TimeoutError)
    |  `- TooLarge                  a value, a result or an answer is larger than its bound: ask for less, or raise it
    |- SessionException             the second base of every error with a *: the errors of session stores
    `- EventLoopException           the second base of every error with a +: a model failed in the middle of a turn

`except SessionException` catches every error of a session store, and none of a model or a tool. The other base says
what to do next.

Messages are lower case; the fields stand at the end as `key=value`. Errors of client libraries are the `__cause__`,
never what a caller has to catch.
"""

from __future__ import annotations

from collections.abc import Sequence


class RepertoryError(Exception):
    """Root of the tree. `fields` holds what the message was built from.

    `RepertoryError("lease lost", session="s1", generation=3)` reads `lease lost session='s1' generation=3`.

    Args:
        fields: The values that the message was built from, by name.
    """

    type_name: str = ""
    """The name of its class in the process that it came from, if there is no such class here; else empty."""
    of_model: Exception | None = None
    """The exception of a model's own code that failed the first step of a turn, where this error was made of one."""

    def __init__(self, message: object = "", /, **fields: object) -> None:
        self.fields = fields
        super().__init__(" ".join([str(message), *(f"{name}={value!r}" for name, value in fields.items())]))

    @property
    def message(self) -> str:
        """The text, with the fields."""
        return str(self)


class Retryable(RepertoryError):
    """The same call may succeed later: wait, then try again."""


class SessionException(RepertoryError):
    """The base of every error of a session store. The other base of the error says what to do next."""


class EventLoopException(RepertoryError):
    """The base of a turn's errors that a model's answer caused. The other base of the error says what to do next.

    Args:
        request_state: What a program gives that raises one itself; here it is empty, and `result.state` has it.
        fields: The values that the message was built from, by name.
    """

    def __init__(self, original_exception: object = "", request_state: object = None, **fields: object) -> None:
        if isinstance(original_exception, BaseException):
            self.__cause__ = original_exception
        self.request_state: object = {} if request_state is None else request_state
        super().__init__(original_exception, **fields)

    @property
    def original_exception(self) -> BaseException:
        """The error that the model raised; this one if there is none behind it."""
        return self.__cause__ or self


class Unavailable(Retryable):
    """A store, model or service could not be reached or broke off. Try again with backoff."""


class StoreUnavailable(Unavailable, SessionException):
    """The store of the session could not be reached or broke off. Try again with backoff."""


class HttpRequestError(Unavailable, RuntimeError):
    """A web address gave nothing, or refused. Try again with backoff, unless the status says that it is for good."""


class WebFetchError(HttpRequestError, ValueError):
    """A page could not be read, or nobody answers the question about it. The message says what to change, if anything
    can be.
    """


class ModelStreamBroken(Unavailable, EventLoopException):
    """The model stopped in the middle of an answer. Repertory discards what had arrived. Call again."""


class Throttled(Retryable):
    """The service asks for fewer requests. Wait `retry_after_s` (seconds) when it is known, else back off.

    Args:
        message: What failed.
        retry_after_s: Seconds after which the service lets another call pass; None if it did not say.
        fields: The values that the message was built from, by name.
    """

    def __init__(self, message: object = "", /, *, retry_after_s: float | None = None, **fields: object) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message, **fields)


class QuotaExhausted(Throttled):
    """The quota of the model has no room before the call's deadline, so the service was not asked. Wait
    `retry_after_s`, or give the call more time.
    """


class StoreThrottled(Throttled, SessionException):
    """The store of the session asks for fewer requests. Wait, as `Throttled` says."""


class AskTimeout(Retryable):
    """No reply before the deadline. The receiver may still do the work: ask again only if that is safe."""


class MailboxFull(Retryable):
    """The receiver's mailbox is at its bound. Use `send` to wait for room, or shed load."""


class Conflict(RepertoryError):
    """Another process or caller was first: reload, then decide."""


class AlreadyExists(Conflict, SessionException):
    """The thing to be created exists. Read it, or choose another name."""


class PreconditionFailed(Conflict, SessionException):
    """The stored version differs from the version that the write expected. Read again, then decide."""


class LeaseLost(Conflict, SessionException):
    """Another owner took the session over. Stop writing; acquire again to go on."""


class SessionBusy(Conflict, Retryable, SessionException):
    """Another live process owns the session and has not released it in time. Try again later, or open it with
    `takeover=True`, which fences the owner: its callers get `LeaseLost`.

    `fields` describe the owner, as far as its name tells: `owner`, `host`, `pid`, `since` (UTC), and `doing`.
    """


class ConcurrencyException(Conflict):
    """Two calls met where only one may run."""


class AgentBusy(ConcurrencyException):
    """A turn is running and the busy policy is `reject`. Wait for it, or call with `busy="queue"`."""


class RunUnfinished(Conflict):
    """An orchestrator's run still has work to do, or waits for answers. Resume it, or pass `resume=False`."""


class Gone(RepertoryError):
    """The object, actor or question does not exist, or no longer."""


class NotFound(Gone):
    """No such session, agent, tool or object."""


class StoreNotFound(NotFound, SessionException):
    """No such session, snapshot, bucket or memory. Check its name, or create it."""


class InterruptNotFound(NotFound, KeyError):
    """No tool waits for this answer, or no longer. `waiting` and `agent.interrupts` hold the ids to answer."""

    __str__ = RepertoryError.__str__  # A `KeyError` shows its message quoted.


class PathNotFound(NotFound, FileNotFoundError):
    """A sandbox has no such file or folder."""


class InterruptExpired(Gone):
    """The time for this answer is over, and no answer given with it was stored. Call with a prompt, or with None: the
    tool that waited gets an error result saying that nobody answered in time.
    """


class ActorDead(Gone):
    """The actor stopped before it answered, or was not running. Look up its successor, or give up."""


class StreamClosed(Gone):
    """The reader of a stream has left; the producer may stop."""


class KeyErased(Gone, SessionException):
    """The key of the session was erased: its contents are gone for good. Delete what is left of it, or leave it as the
    proof that it was there.
    """


class Invalid(RepertoryError, ValueError):
    """The caller's mistake. The message says which argument and what it should be."""


class NotReady(Invalid):
    """The agent was built inside a running event loop and has not been opened yet.

    Await `agent.ready()`, enter `async with agent`, or make any call first.
    """


class ClientNotOpen(NotReady, Unavailable):
    """A client of a tool server has no connection yet, or no longer. Use it inside `async with client`."""


class StepsChanged(Invalid, RuntimeError):
    """A tool that was cut off asks for other steps than the ones on record: its program has changed, or takes decisions
    that are in no step. Bring the old program back, or give new steps their place behind the recorded ones.
    """


class InterruptsWaiting(Invalid, TypeError):
    """The turn waits for a person. `waiting` holds the interrupt ids: call with the answers, or with
    `drop_interrupts=True` to continue without them.
    """


class MayNotAnswer(Invalid, PermissionError):
    """The question names the people who may answer, and this one is not among them. `may_answer` holds their names or
    roles: have one of them answer.
    """


class SnapshotException(Invalid, SessionException):
    """This snapshot cannot be loaded here: it is damaged, of another version, or of another kind or owner. Choose
    another one; nothing was changed.
    """


class InvalidKey(Invalid, SessionException):
    """A key of a storage is empty, or has a part that no storage takes. Change the key."""


class EncryptionNeeded(Invalid, SessionException):
    """The session is encrypted, and its place was opened without keys. Name them: `encryption=LocalKeys(...)`."""


class UnpairedTools(Invalid):
    """Tool uses and tool results do not match, so the history was refused before it was stored."""


class Failed(RepertoryError):
    """An actor, model, hook, node or store tried and failed. `__cause__` says why."""


class ActorFailed(Failed):
    """The handler raised. The actor has ended and its supervisor decides; ask again if that is safe."""


class CassetteMismatch(Failed):
    """A test has asked a model what its cassette does not have, or has not asked all that it has. The message shows
    the difference: change the program back, or record the cassette anew.
    """


class StartFailed(Failed):
    """The actor did not finish starting. `__cause__` says why; nothing of it is left running."""


class Deadlock(Failed):
    """The ask would wait for itself. The message names the actors in the circle; restructure the calls."""


class ModelFailed(Failed, EventLoopException):
    """The model provider refused the request, or its answer cannot be read. Retrying the same request will not help."""


class ModelRefused(ModelFailed):
    """The model, or its provider's filter, refused to answer. Its text is in the history. Change the prompt."""


class StructuredOutputException(Failed):
    """The model gave no valid structured output, however often it was asked. Ask again, or simplify the schema."""


class AggregateMemoryError(Failed):
    """Some writes to memory stores failed, and the others succeeded. Repeat those that `errors` names.

    Args:
        message: What failed.
        errors: The errors, one for each store that failed.
        fields: The values that the message was built from, by name.
    """

    def __init__(self, message: object = "", /, errors: Sequence[Exception] = (), **fields: object) -> None:
        self.errors = tuple(errors)
        super().__init__(message, **fields)


class ExtractionFailed(Failed):
    """An extractor failed, and nothing of these messages was stored as memory. Extract from the same messages again."""


class CommandFailed(Failed, RuntimeError):
    """A command could not be run; its cause says why. A command that ran and failed is a result, not this error."""


class FileFailed(Failed, OSError):
    """A file of a sandbox could not be read, written or removed; the message has what the sandbox said."""


class HookFailed(Failed):
    """A callback that guards a step raised, so the step was not taken. `__cause__` is what it raised."""


class MiddlewareFailed(HookFailed, RuntimeError):
    """Middleware around a call of a model or tool raised, or gave no result. `__cause__` is what it raised."""


class NodeFailed(Failed, RuntimeError):
    """A node of an orchestrator failed, and with it the run, which can be resumed. `__cause__` is the node's error, and
    `result` the result so far.

    Attributes:
        result: The result of the run until then.
    """

    result: object = None


class StepFailed(Failed, RuntimeError):
    """A step of a tool failed for good, in this life of the process or before. Handle it, or let it pass: the tool then
    fails, and what it registered with `on_failure` is undone. `__cause__` is the step's exception, if it was raised in
    this life.
    """


class StoreFailed(Failed, SessionException):
    """The session store refused the request. Change what `__cause__` names: rights, credentials, the place. The records
    wait in the commit buffer meanwhile.
    """


class Unwritable(StoreFailed):
    """The store cannot write these records, and would fail again: `__cause__` says why. Nothing is retried, and other
    sessions go on; call again without the value that `__cause__` names.
    """


class KeyMissing(StoreFailed):
    """The session is encrypted with a key that is not where its keys are kept, or that nothing there can unwrap. Bring
    back the keys, or the master key, that the fields name. Nothing is begun anew over it.
    """


class Corrupt(SessionException):
    """Stored data is damaged. Nothing was changed; a human must look."""


class CorruptJournal(Corrupt):
    """A journal record fails its checksum, its chain or its schema. The fields name session and sequence number."""


class LimitReached(RepertoryError):
    """A bound that the caller or the provider has set was reached."""


class StoreLimitReached(LimitReached, SessionException):
    """A quota of the service behind the session store is used up. Have it raised, or remove sessions."""


class ContextWindowOverflowException(LimitReached):
    """The conversation does not fit the model's window and the conversation manager could not shorten it."""


class MaxTokensReachedException(LimitReached):
    """The answer was cut off at the token limit. Its beginning is in the history: call with a prompt to continue it, or
    raise the limit.
    """


class RestartLimitReached(LimitReached):
    """A child failed more often than its supervisor allows, so the supervisor gave up and the failure went upward."""


class CommandTimeout(LimitReached, TimeoutError):
    """A command did not end in time, and was killed; the message has what it had written. Allow more, or do less.

    Args:
        message: What failed.
        stdout: The output until then.
        stderr: The error output until then.
        fields: The values that the message was built from, by name.
    """

    def __init__(self, message: object = "", /, *, stdout: str = "", stderr: str = "", **fields: object) -> None:
        self.stdout = stdout
        self.stderr = stderr
        super().__init__(message, **fields)


class TooLarge(LimitReached):
    """A prompt, a value, a tool's result or a model's answer is larger than its bound. The message says how large it
    is, and names the bound: ask for less, or raise the bound.
    """


CLASSES = {name: kind for name, kind in vars().items() if isinstance(kind, type) and issubclass(kind, RepertoryError)}
vars()["__all__"] = sorted(CLASSES)  # For `import *`. A list that tools can read would repeat every name above.
