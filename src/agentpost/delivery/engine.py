"""The parts of the engine, put together. Starts them, drains them, stops them; decides nothing by itself."""

from collections.abc import Callable, Collection, Iterable, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from agentpost.delivery.agents import AgentDirectory, LocalAgents
from agentpost.delivery.clocks import ClockCheck
from agentpost.delivery.closing import Closer
from agentpost.delivery.deadletters import DeadLetters
from agentpost.delivery.dispatch import Dispatcher
from agentpost.delivery.expiring import Expiring
from agentpost.delivery.hub import LinkHub, OnRegressed
from agentpost.delivery.idempotency import IdempotencyKeys
from agentpost.delivery.incidents import Incidents, StatusDesk
from agentpost.delivery.keeping import CursorCopy, Keeper, RoomCopies
from agentpost.delivery.mailroom import Mailroom
from agentpost.delivery.making import EventMaker
from agentpost.delivery.metrics import DeliveryMetrics, Meter, Tally
from agentpost.delivery.outbox import OutboxWriter
from agentpost.delivery.outcomes import Outcomes
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import RoomView, Runtime, Wakeups
from agentpost.delivery.postmaster import Postmaster
from agentpost.delivery.publish import Publisher
from agentpost.delivery.pull import Pull
from agentpost.delivery.quarantine import Quarantine
from agentpost.delivery.removed_agents import RemovedAgents
from agentpost.delivery.retry import Retrier
from agentpost.delivery.sealing import Sealer
from agentpost.delivery.secrets import AgentSecrets
from agentpost.delivery.task_moves import TaskMoves
from agentpost.delivery.task_turns import TaskTurns
from agentpost.delivery.watching import Watchers
from agentpost.protocol.envelope import Event, SignalEvent
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.interface import Store
from agentpost.store.values import LocalAgent
from agentpost.tasks import TaskOwner
from agentpost.world import Chance, Clock, IdMaker

__all__ = ["Engine"]


class Engine:
    """Everything that one gateway does with mail. The edges call its parts by their names."""

    def __init__(
        self,
        *,
        store: Store,
        room: RoomView,
        directory: AgentDirectory,
        copies: RoomCopies | None,
        signing: Ed25519PrivateKey,
        sealing: X25519PrivateKey,
        tier: NodeTier,
        clock: Clock,
        chance: Chance,
        runtimes: Callable[[LocalAgent], Runtime],
        secret_options: Callable[[str], Collection[str]] = lambda _runtime: (),
        policy: DeliveryPolicy | None = None,
        readers: Callable[[str], Iterable[CursorCopy]] | None = None,
        on_regressed: OnRegressed | None = None,
    ) -> None:
        policy = policy or DeliveryPolicy()
        self.ids = ids = IdMaker(clock, chance, node_id=store.node_id)
        secrets = AgentSecrets(signing, chance, secret_options)

        def runtime_of(agent: LocalAgent) -> Runtime:
            return runtimes(secrets.open(agent))

        self.policy = policy
        self.store = store
        self.room = room
        self.clock = clock
        self.wakeups = wakeups = Wakeups()
        self.maker = maker = EventMaker(node_id=store.node_id, clock=clock, ids=ids)
        self.keys = IdempotencyKeys(store=store, clock=clock)
        self.sealer = Sealer(
            node_id=store.node_id,
            sealing=sealing,
            room=room,
            clock=clock,
            chance=chance,
            store=store,
            on_damaged=self._payload_damaged,
        )
        self.publisher = Publisher(
            store=store,
            room=room,
            sealer=self.sealer,
            maker=maker,
            ids=ids,
            clock=clock,
            wakeups=wakeups,
            accepted_ack_timeout_seconds=policy.accepted_ack_timeout_seconds,
        )
        self.outbox = OutboxWriter(store, wakeups)
        self.mailroom = Mailroom(
            store=store, sealer=self.sealer, publisher=self.publisher, maker=maker, clock=clock, wakeups=wakeups
        )
        self.outcomes = Outcomes(store=store, publisher=self.publisher, wakeups=wakeups)
        postmaster = Postmaster(store=store, room=room, maker=maker, sealer=self.sealer, clock=clock, policy=policy)
        self.links = LinkHub(
            store,
            room,
            signing=signing,
            maker=maker,
            clock=clock,
            wakeups=wakeups,
            tier=tier,
            policy=policy,
            readers=readers,
            on_regressed=on_regressed,
            report_failure=postmaster.report_failure,
        )
        self.task_moves = TaskMoves(store=store, publisher=self.publisher, maker=maker, clock=clock)
        self.dispatcher = Dispatcher(
            store=store,
            sealer=self.sealer,
            publisher=self.publisher,
            maker=maker,
            clock=clock,
            chance=chance,
            wakeups=wakeups,
            runtimes=runtime_of,
            task_turns=TaskTurns(store=store, room=room, moves=self.task_moves),
        )
        self.pull = Pull(
            store=store,
            turns=self.dispatcher.turns,
            clock=clock,
            wakeups=wakeups,
            is_busy_with=self.dispatcher.is_busy_with,
        )
        self.expiring = Expiring(
            store=store, turns=self.dispatcher.turns, clock=clock, is_busy_with=self.dispatcher.is_busy_with
        )
        self.removed_agents = RemovedAgents(
            store=store,
            room=room,
            turns=self.dispatcher.turns,
            moves=self.task_moves,
            clock=clock,
            wakeups=wakeups,
            is_busy_with=self.dispatcher.is_busy_with,
        )
        self.agents = LocalAgents(
            store=store,
            directory=directory,
            clock=clock,
            check=lambda agent: _check(runtime_of, agent),
            on_change=self.dispatcher.refresh,
            secrets=secrets,
            end_mail=self.removed_agents.end,
        )
        self.retrier = Retrier(
            store,
            room,
            maker,
            clock,
            chance,
            wakeups,
            policy,
            read_through=self.links.read_through,
            readdress=self.publisher.readdress,
            report=postmaster.report,
        )
        self.dead_letters = DeadLetters(
            store=store,
            room=room,
            publisher=self.publisher,
            sealer=self.sealer,
            maker=maker,
            clock=clock,
            policy=policy,
        )
        self.watchers = Watchers(store=store, clock=clock, wakeups=wakeups)
        self.incidents = Incidents(store=store, clock=clock)
        self.closer = Closer(store=store, room=room, clock=clock, failing=self.dispatcher.turns.failing)
        self.quarantine = Quarantine(store=store, clock=clock, take_again=self.links.intake.take_again)
        tally = Tally()
        self._meter = Meter(store, tally=tally)
        self._tasks = TaskOwner("engine")
        self._status_desk = StatusDesk(store=store, maker=maker, clock=clock, wakeups=wakeups, policy=policy)
        wakeups.listen(taken=tally.took, signals=self._signals_heard, repeats=self._repeats_heard)
        self._clock_check = ClockCheck(store=store, room=room, clock=clock)
        self.keeper = Keeper(
            store=store,
            room=room,
            clock=clock,
            wakeups=wakeups,
            policy=policy,
            copies=copies,
            readers=readers,
            renew=self.links.fetcher.renew,
        )
        self.keeper.on_records_pruned = self.quarantine.close_incidents

    async def start(self) -> None:
        """Begin with what waits from before."""
        await self.agents.announce()
        self.links.start()
        self.dispatcher.start()
        self.expiring.start()
        self.removed_agents.start()
        self.closer.start()
        self.retrier.start()
        self.keeper.start()
        self._clock_check.start()
        self._tasks.spawn(self.quarantine.read_anew(), name="quarantine")

    def metrics(self) -> DeliveryMetrics:
        """How delivery is doing, as far as this gateway sees it."""
        return self._meter.read(now_ms=self.clock.now_ms(), room=self.room.snapshot())

    def _payload_damaged(self, sha256: str) -> None:
        self._tasks.spawn(self.links.fetcher.renew(sha256), name="damaged payload")

    def _signals_heard(self, signals: Sequence[SignalEvent]) -> None:
        self.retrier.hear(signals)
        self._tasks.spawn(self._status_desk.hear(signals), name="signals")

    def _repeats_heard(self, resent: Sequence[tuple[Event, str]]) -> None:
        self._tasks.spawn(self._status_desk.tell(resent), name="repeats")

    async def drain(self) -> None:
        """Take no new work, and wait for the turns that are running."""
        await self.dispatcher.drain()

    async def close(self) -> None:
        """End everything that runs. What is not settled goes on at the next start."""
        await self.pull.close()
        await self._tasks.close()
        await self._clock_check.close()
        await self.keeper.close()
        await self.retrier.close()
        await self.removed_agents.close()
        await self.expiring.close()
        await self.closer.close()
        await self.dispatcher.close()
        await self.links.close()


def _check(runtimes: Callable[[LocalAgent], Runtime], agent: LocalAgent) -> None:
    runtimes(agent)
