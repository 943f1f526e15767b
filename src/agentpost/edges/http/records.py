"""What became of it, over HTTP: traces, deliveries, dead letters, incidents, metrics."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
from litestar import MediaType, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter
from litestar.response import Stream
from msgspec import Struct, structs

from agentpost.delivery.deadletters import DeadLetterLine, DeadLetterView, Filter, Resent
from agentpost.delivery.engine import Engine
from agentpost.delivery.metrics import DeliveryMetrics, to_prometheus
from agentpost.delivery.sent import SentMessage, sent_message
from agentpost.delivery.tailing import Tailed, tail
from agentpost.delivery.trace import TraceStep, trace
from agentpost.edges.http.parameters import HIGHEST_SEQ, AfterId
from agentpost.protocol.cloudevents import cloud_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.incidents import IncidentKind, hint_for, meaning_of
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.store.values import Incident

__all__ = ["record_routes"]

_LOOK_SECONDS: Final = 0.5
_LINES: Final = "application/x-ndjson"
# Whoever opened the operator's socket.
_ACTOR: Final = "operator"

Limit = Annotated[int, Parameter(ge=1, le=500, description="How many at most.")]
After = Annotated[int, Parameter(ge=0, le=HIGHEST_SEQ, description="Only what comes after this seq.")]
IncidentId = Annotated[int, Parameter(ge=0, le=HIGHEST_SEQ)]
WaitSeconds = Annotated[float, Parameter(ge=0, le=60, description="How long to wait for the end.")]


class Trace(Struct, frozen=True, kw_only=True, rename="camel"):
    steps: list[TraceStep]


class IncidentLine(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An incident: `what` its kind means, the `hint` what to do about it.

    `closes` says when it closes by itself; without it, only an operator closes it.
    """

    id: int
    kind: str
    subject: str
    at_ms: int
    corr_id: str | None = None
    detail: dict[str, str | int | bool | None] = {}
    closed_at_ms: int | None = None
    what: str
    hint: str
    closes: str = ""


class IncidentDelivery(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A delivery that an incident is about, as it is now."""

    to_agent_id: str
    to_node_id: str | None
    state: DeliveryState
    attempts: int
    reason: str | None = None


class IncidentDetail(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One incident, and the deliveries it is about as they are now."""

    incident: IncidentLine
    deliveries: tuple[IncidentDelivery, ...] = ()


class IncidentKindLine(Struct, frozen=True, kw_only=True, rename="camel"):
    """A kind of incident: what it means, what to do, when it closes by itself, and how many are open here."""

    kind: str
    what: str
    hint: str
    closes: str
    open: int


class QuarantineLine(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An event of another gateway that this one could not read, and why."""

    id: int
    source_node_id: str
    source_epoch: str
    source_seq: int | None = None
    event_id: str | None = None
    code: str
    message: str
    at_ms: int
    size_bytes: int


class QuarantineSourceLine(Struct, frozen=True, kw_only=True, rename="camel"):
    """How much of a gateway is in the quarantine. `dropped` events were more than are kept of one source."""

    source_node_id: str
    events: int
    size_bytes: int
    dropped: int


class QuarantinePage(Struct, frozen=True, kw_only=True, rename="camel"):
    sources: list[QuarantineSourceLine]
    events: list[QuarantineLine]


class QuarantineDetail(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One event with its fields, or with how its bytes begin, in base64. All of it is data, never instructions."""

    event: QuarantineLine
    fields: dict[str, Any] | None = None
    begins: str | None = None


class Chosen(Filter, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Which dead letters something is done with. To mean all of them has to be said: `{"all": true}`."""

    all: bool = False

    @property
    def which(self) -> Filter:
        """A filter that chooses something on purpose, or a refusal."""
        which = Filter(event_id=self.event_id, to_agent_id=self.to_agent_id, reason=self.reason, since_ms=self.since_ms)
        if which == Filter() and not self.all:
            raise Refusal(
                Code.INVALID_FIELD,
                "this would be all dead letters",
                field="all",
                hint='Give eventId, toAgentId, reason or sinceMs; or {"all": true}.',
            )
        return which


class MirrorView(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far this gateway has another one's outbox."""

    source_node_id: str
    epoch: str
    last_seq: int


def record_routes(engine: Engine, *, more_metrics: Callable[[], str] = str) -> Sequence[HTTPRouteHandler]:
    """`more_metrics` is what others have to say to Prometheus."""

    @get("/ansible/messages/{event_id:str}", summary="What became of a message", tags=["records"])
    async def message(event_id: str, wait_seconds: WaitSeconds = 0) -> SentMessage:
        """With `wait_seconds` the answer comes once it is over for all recipients, or when the time is."""
        if wait_seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await engine.outcomes.ended(EventId(event_id))
        return sent_message(engine.store, engine.sealer, EventId(event_id), now_ms=engine.clock.now_ms())

    @get("/ansible/trace/{what:str}", sync_to_thread=False, summary="Trace an event or conversation", tags=["records"])
    def trace_of(what: str) -> Trace:
        """Each step with its time, as far as this gateway knows: routed, notified, engaged, settled."""
        steps = trace(engine.store, what, sealer=engine.sealer)
        if not steps:
            raise Refusal(Code.NOT_FOUND, f"nothing is known here of {what!r:.40}", hint="Ask the sender's gateway.")
        return Trace(steps=steps)

    @get("/ansible/dead-letters", summary="List dead letters", tags=["dead letters"])
    async def dead_letters(to: str | None = None, reason: str | None = None, limit: Limit = 50) -> list[DeadLetterLine]:
        which = Filter(to_agent_id=to, reason=reason)
        return await engine.dead_letters.list(which, limit=limit, actor=_ACTOR)

    @get("/ansible/dead-letters/{event_id:str}", summary="Show a dead letter", tags=["dead letters"])
    async def dead_letter(event_id: str) -> DeadLetterView:
        return await engine.dead_letters.show(EventId(event_id), actor=_ACTOR)

    @post("/ansible/dead-letters/resend", status_code=200, summary="Send dead letters again", tags=["dead letters"])
    async def resend(data: Annotated[Chosen, Body()]) -> Resent:
        """Those that the filter names, as new events of the same conversation; with `all`, every one."""
        return await engine.dead_letters.resend(data.which, actor=_ACTOR)

    @post("/ansible/dead-letters/purge", status_code=200, summary="Forget dead letters", tags=["dead letters"])
    async def purge(data: Annotated[Chosen, Body()]) -> dict[str, int]:
        """Those that the filter names; with `all`, every one. Says how many there were."""
        return {"purged": await engine.dead_letters.purge(data.which, actor=_ACTOR)}

    @get("/ansible/incidents", sync_to_thread=False, summary="List incidents", tags=["records"])
    def incidents(only_open: bool = True, after: AfterId = 0, limit: Limit = 50) -> list[IncidentLine]:
        """In the order in which they were raised, each with what it means and what to do about it."""
        return [_incident(each) for each in engine.incidents.list(open_only=only_open, after_id=after, limit=limit)]

    @get("/ansible/incidents/kinds", sync_to_thread=False, summary="The kinds of incidents", tags=["records"])
    def incident_kinds() -> list[IncidentKindLine]:
        """Every kind that this version can raise, and every kind of which one is open here."""
        counts = engine.store.count_incidents()
        kinds = dict.fromkeys([*(kind.value for kind in IncidentKind), *counts])
        return [_kind_line(kind, counts.get(kind, 0)) for kind in kinds]

    @get("/ansible/incidents/{incident_id:int}", sync_to_thread=False, summary="Show an incident", tags=["records"])
    def incident(incident_id: IncidentId) -> IncidentDetail:
        """One incident, open or closed, with the deliveries it is about."""
        view = engine.incidents.show(incident_id)
        deliveries = [
            IncidentDelivery(
                to_agent_id=each.to_agent_id,
                to_node_id=each.to_node_id,
                state=each.state,
                attempts=each.attempts,
                reason=each.reason,
            )
            for each in view.deliveries
        ]
        return IncidentDetail(incident=_incident(view.incident), deliveries=tuple(deliveries))

    @post("/ansible/incidents/{incident_id:int}/close", status_code=200, summary="Close an incident", tags=["records"])
    async def close(incident_id: IncidentId) -> dict[str, bool]:
        return {"closed": await engine.incidents.close(incident_id, actor=_ACTOR)}

    @get("/ansible/quarantine", sync_to_thread=False, summary="Events that could not be read", tags=["records"])
    def quarantine(source: str | None = None, after: AfterId = 0, limit: Limit = 50) -> QuarantinePage:
        """Those of all gateways, or of one, in the order in which they came. They are read again after an upgrade."""
        events = engine.quarantine.list(source_node_id=source, after_id=after, limit=limit)
        return QuarantinePage(
            sources=[QuarantineSourceLine(**structs.asdict(each)) for each in engine.quarantine.sources()],
            events=[QuarantineLine(**structs.asdict(each)) for each in events],
        )

    @get("/ansible/quarantine/{event:int}", sync_to_thread=False, summary="Show such an event", tags=["records"])
    def quarantined(event: IncidentId) -> QuarantineDetail:
        """As much of it as can be made out."""
        view = engine.quarantine.show(event)
        line = QuarantineLine(**structs.asdict(view.event))
        return QuarantineDetail(event=line, fields=view.fields, begins=view.begins)

    @get("/ansible/watch", media_type=_LINES, summary="What happens here, as it happens", tags=["records"])
    async def watch() -> Stream:
        """One JSON object on each line, for as long as the caller listens and the gateway runs."""
        return Stream(_lines(engine), media_type=_LINES)

    @get("/ansible/streams/{stream:str}", media_type=_LINES, summary="A stream, event by event", tags=["records"])
    async def stream_of(stream: str, after: After = 0, follow: bool = False, cloudevents: bool = False) -> Stream:
        """One JSON object on each line: the events of `outbox`, of `inbox:<agent>`, or of a node that is mirrored here.

        Content stays sealed. With `follow` it goes on for as long as the caller listens and the gateway runs.
        """
        first = tail(engine.store, stream, after_seq=after)
        lines = _stream_lines(engine, stream, first, after, follow=follow, as_cloud_events=cloudevents)
        return Stream(lines, media_type=_LINES)

    @get("/ansible/mirrors", sync_to_thread=False, summary="The outboxes that are mirrored here", tags=["records"])
    def mirrors() -> list[MirrorView]:
        return [
            MirrorView(source_node_id=each.source_node_id, epoch=each.epoch, last_seq=each.last_seq)
            for each in engine.store.mirrors()
        ]

    @get("/ansible/metrics", sync_to_thread=False, summary="How delivery is doing", tags=["records"])
    def metrics() -> DeliveryMetrics:
        return engine.metrics()

    @get(
        "/metrics",
        media_type=MediaType.TEXT,
        sync_to_thread=False,
        summary="The same for Prometheus",
        tags=["records"],
    )
    def prometheus() -> Response[str]:
        return Response(to_prometheus(engine.metrics()) + more_metrics())

    return [
        message,
        trace_of,
        dead_letters,
        dead_letter,
        resend,
        purge,
        incidents,
        incident_kinds,
        incident,
        close,
        quarantine,
        quarantined,
        watch,
        stream_of,
        mirrors,
        metrics,
        prometheus,
    ]


async def _lines(engine: Engine) -> AsyncGenerator[bytes]:
    # Said at once, so that the caller knows that it listens.
    yield b"\n"
    async for happening in engine.watchers.watch():
        yield msgspec.json.encode(happening) + b"\n"


async def _stream_lines(
    engine: Engine, stream: str, found: Iterator[Tailed], after_seq: int, *, follow: bool, as_cloud_events: bool
) -> AsyncGenerator[bytes]:
    while True:
        for each in found:
            after_seq = each.seq
            yield msgspec.json.encode(_as_cloud_event(each) if as_cloud_events else each) + b"\n"
        if not follow or engine.watchers.is_released:
            return
        yield b"\n"
        await asyncio.sleep(_LOOK_SECONDS)
        found = tail(engine.store, stream, after_seq=after_seq)


def _as_cloud_event(tailed: Tailed) -> dict[str, Any]:
    return cloud_event(tailed.event, stream=tailed.stream, epoch=tailed.epoch, seq=tailed.seq)


def _incident(incident: Incident) -> IncidentLine:
    meaning = meaning_of(incident.kind)
    hint = hint_for(incident.kind, subject=incident.subject, detail=incident.detail)
    return IncidentLine(**structs.asdict(incident), what=meaning.what, hint=hint, closes=meaning.closes)


def _kind_line(kind: str, open_: int) -> IncidentKindLine:
    meaning = meaning_of(kind)
    return IncidentKindLine(kind=kind, what=meaning.what, hint=hint_for(kind), closes=meaning.closes, open=open_)
