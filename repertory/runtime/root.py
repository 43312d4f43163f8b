"""The top of the tree: the supervisor that has none above it."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from repertory.errors import ActorDead, NotFound, RestartLimitReached
from repertory.runtime.child import Child, Keeper
from repertory.runtime.exit import ExitReason, Failed, LimitReached, Shutdown
from repertory.runtime.mailbox import Mailbox, MailboxSettings
from repertory.runtime.ref import ActorRef
from repertory.runtime.services import Services
from repertory.runtime.spec import ChildSpec, SupervisorSettings
from repertory.runtime.supervisor import Supervisor
from repertory.runtime.tree import ActorInfo
from repertory.runtime.watch import announce_end


class Root:
    """Keeps the root supervisor. When that ends unasked, the system is lost: `on_fatal` is called."""

    def __init__(self, services: Services, settings: SupervisorSettings, on_fatal: Callable[[Exception], None]) -> None:
        spec = ChildSpec(name="root", factory=lambda: Supervisor((), settings))
        mailbox = Mailbox("/", MailboxSettings(), services.dead_letters, services.post.parking.waiter)
        self._child = Child(spec, ActorRef("/", mailbox, services.post))
        self.services = services
        self._on_fatal = on_fatal
        self._stopping = False
        self.started = anyio.Event()
        self.ended = anyio.Event()

    @property
    def keeper(self) -> Keeper:
        """What keeps the root's children. Errors: `ActorDead` once the root has ended."""
        cell = self._child.cell
        keeper = None if cell is None else cell.keeping
        if keeper is None:
            raise ActorDead("the system has stopped")
        return keeper

    def launch(self) -> None:
        """Begin to run."""
        self._child.cell = self.services.incarnate(self._child, self)
        self._child.cell.launch()

    def info(self) -> ActorInfo:
        """The whole tree at this instant."""
        return self._child.info()

    def request_stop(self, why: str) -> None:
        """Stop all actors in order."""
        self._stopping = True
        if self._child.cell is not None:
            self._child.cell.request_stop(Shutdown(why), keep_queue=False)

    def kill(self) -> tuple[str, ...]:
        """Cut all actors short; the paths of those that still ran, innermost only."""
        self._stopping = True
        running = tuple(actor.path for actor in self.info().walk() if not actor.children and actor.path != "/")
        if self._child.cell is not None:
            self._child.cell.kill()
        return running

    # The root's supervisor, as its cell sees it.

    def child_started(self, child: Child) -> None:
        """The root supervisor runs."""
        self.started.set()

    def child_ended(self, child: Child, reason: ExitReason) -> None:
        """The root supervisor has ended, and with it everything."""
        child.cell = None
        child.ref.mailbox.close()
        announce_end(child.ref, reason)
        self.ended.set()
        if not self._stopping:
            lost = reason.error if isinstance(reason, Failed | LimitReached) else None
            self._on_fatal(lost or RestartLimitReached("the root supervisor was killed"))

    def find(self, name: str) -> ActorRef[object]:
        """The root has no siblings."""
        raise NotFound("the root has no siblings", name=name)

    def child(self, name: str) -> Child | None:
        """The root has no siblings."""
        return None

    async def start(self, spec: ChildSpec) -> ActorRef[object]:
        """The root has no siblings."""
        return self.find(spec.name)

    def end(self, name: str, ended: Callable[[], object], reason: Shutdown) -> None:
        """The root has no siblings."""
        self.find(name)
