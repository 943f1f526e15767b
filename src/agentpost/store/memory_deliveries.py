"""The deliveries of the store in memory: the sender's view of each recipient."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from agentpost.protocol.delivery import Change, Delivery, is_undelivered
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliveryState
from agentpost.store import rules
from agentpost.store.memory_mirrors import MemoryMirrors
from agentpost.store.values import FailedAttempt, FailureReport, ResentLetter, Unaccepted

__all__ = ["MemoryDeliveries", "Pair"]

Pair = tuple[EventId, str]

_UNACCEPTED = frozenset({DeliveryState.EMITTED, DeliveryState.RETRY_PENDING})


class MemoryDeliveries(MemoryMirrors):
    """A part of `MemoryStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._deliveries: dict[Pair, Delivery] = {}
        self._recipients: dict[EventId, list[str]] = {}
        self._failed_attempts: dict[Pair, FailedAttempt] = {}

    def _added(self, deliveries: Sequence[Delivery], places: Mapping[EventId, int]) -> dict[Pair, Delivery]:
        added: dict[Pair, Delivery] = {}
        for delivery in deliveries:
            if delivery.event_id not in places:
                raise rules.unplaced(delivery.event_id)
            pair = (delivery.event_id, delivery.to_agent_id)
            if pair in self._deliveries or pair in added:
                raise Refusal(Code.CONFLICT, f"there is a delivery of {pair[0]} to {pair[1]} already")
            added[pair] = replace(delivery, seq=places[delivery.event_id])
        return added

    def _found(self, changes: Sequence[Change]) -> dict[Pair, Delivery]:
        pairs = ((change.event_id, change.to_agent_id) for change in changes)
        return {pair: self._deliveries[pair] for pair in pairs if pair in self._deliveries}

    def _keep_deliveries(self, deliveries: Mapping[Pair, Delivery]) -> None:
        for (event_id, to_agent_id), delivery in deliveries.items():
            if (event_id, to_agent_id) not in self._deliveries:
                self._recipients.setdefault(event_id, []).append(to_agent_id)
            self._deliveries[event_id, to_agent_id] = delivery

    def deliveries_of(self, event_id: EventId) -> list[Delivery]:
        self._check_open()
        return [self._deliveries[event_id, agent_id] for agent_id in sorted(self._recipients.get(event_id, ()))]

    def due_deliveries(self, now_ms: int, *, limit: int = 256) -> list[Delivery]:
        due = [(due_at_ms, delivery) for due_at_ms, delivery in self._timers() if due_at_ms <= now_ms]
        due.sort(key=lambda timer: (timer[0], timer[1].event_id, timer[1].to_agent_id))
        return [delivery for _, delivery in due[:limit]]

    def unaccepted_by(self, node_id: str, *, after_seq: int, through_seq: int, limit: int = 256) -> list[Delivery]:
        found = [
            each for each in self._unaccepted() if each.to_node_id == node_id and after_seq < each.seq <= through_seq
        ]
        return found[: max(limit, 0)]

    def unaccepted_counts(self, *, most: int) -> list[Unaccepted]:
        first: dict[str, Delivery] = {}
        counts = Counter[str]()
        for each in self._unaccepted()[: max(most, 0)]:
            if each.to_node_id is not None:
                first.setdefault(each.to_node_id, each)
                counts[each.to_node_id] += 1
        return [
            Unaccepted(node_id=node_id, count=counts[node_id], since_ms=first[node_id].emitted_at_ms)
            for node_id in sorted(counts)
        ]

    def _unaccepted(self) -> list[Delivery]:
        self._check_open()
        found = [each for each in self._deliveries.values() if each.state in _UNACCEPTED]
        return sorted(found, key=lambda each: (each.seq, each.event_id, each.to_agent_id))

    def next_due_at_ms(self) -> int | None:
        return min((due_at_ms for due_at_ms, _ in self._timers()), default=None)

    def _timers(self) -> Iterable[tuple[int, Delivery]]:
        self._check_open()
        return ((each.due_at_ms, each) for each in self._deliveries.values() if each.due_at_ms is not None)

    def deliveries_in(
        self, states: Iterable[DeliveryState], *, after: tuple[str, str] = ("", ""), limit: int = 256
    ) -> list[Delivery]:
        self._check_open()
        wanted = set(states)
        pairs = sorted(pair for pair, each in self._deliveries.items() if each.state in wanted and pair > after)
        return [self._deliveries[pair] for pair in pairs[: max(limit, 0)]]

    def undelivered(self, *, after: tuple[str, str] = ("", ""), limit: int = 256) -> list[Delivery]:
        self._check_open()
        pairs = sorted(pair for pair, each in self._deliveries.items() if is_undelivered(each) and pair > after)
        return [self._deliveries[pair] for pair in pairs[: max(limit, 0)]]

    def failed_attempts_of(self, event_id: EventId) -> list[FailedAttempt]:
        self._check_open()
        return [self._failed_attempts[pair] for pair in sorted(self._failed_attempts) if pair[0] == event_id]

    def failing_before(self, delivery: Delivery, *, after_ms: int) -> EventId | None:
        self._check_open()
        found = (
            self._deliveries[pair]
            for pair, failed in self._failed_attempts.items()
            if pair in self._deliveries and failed.holds_back and (failed.next_at_ms or 0) > after_ms
        )
        before = [
            each
            for each in found
            if (each.to_agent_id, each.from_agent_id) == (delivery.to_agent_id, delivery.from_agent_id)
            and each.state is DeliveryState.ACCEPTED
            and each.seq < delivery.seq
        ]
        return min(before, key=lambda each: each.seq).event_id if before else None

    def _note_failed_attempts(self, attempts: Sequence[FailedAttempt]) -> None:
        for told in attempts:
            pair = (told.event_id, told.to_agent_id)
            delivery, known = self._deliveries.get(pair), self._failed_attempts.get(pair)
            if delivery is None or delivery.to_node_id != told.by_node_id:
                continue
            if told.next_at_ms is not None and delivery.state in (DeliveryState.PROCESSED, DeliveryState.REPLIED):
                continue
            if known is not None:
                if known.next_at_ms is None or (told.next_at_ms is not None and told.attempt < known.attempt):
                    continue
                told = replace(
                    told,
                    attempt=max(told.attempt, known.attempt),
                    most_attempts=max(told.most_attempts, known.most_attempts),
                )
            first_at_ms = told.at_ms if known is None else known.first_at_ms
            self._failed_attempts[pair] = replace(told, first_at_ms=first_at_ms, by_node_id="")

    def _to_report(self, reports: Sequence[FailureReport]) -> list[FailureReport]:
        return [each for each in reports if rules.is_first_word(self.deliveries_of(each.event_id), each)]

    def deliveries_by_corr(self, corr_id: str) -> list[Delivery]:
        self._check_open()
        pairs = sorted(pair for pair, each in self._deliveries.items() if each.corr_id == corr_id)
        return [self._deliveries[pair] for pair in pairs]

    def count_deliveries(self, *, only: DeliveryState | None = None) -> dict[DeliveryState, int]:
        self._check_open()
        return dict(Counter(each.state for each in self._deliveries.values() if only in (None, each.state)))

    async def reschedule(self, pairs_due: Sequence[tuple[EventId, str, int | None]]) -> None:
        self._check_open()
        for event_id, to_agent_id, due_at_ms in pairs_due:
            found = self._deliveries.get((event_id, to_agent_id))
            if found is not None and found.state not in DELIVERY.terminal:
                self._deliveries[event_id, to_agent_id] = replace(found, due_at_ms=due_at_ms)

    def _resent(self, resends: Sequence[ResentLetter]) -> dict[Pair, Delivery]:
        """The letters as they are once they were sent again; refused if one of them cannot be."""
        changed: dict[Pair, Delivery] = {}
        for letter in resends:
            pair = (letter.event_id, letter.to_agent_id)
            found = changed.get(pair) or self._deliveries.get(pair)
            if found is None or not rules.is_resendable(found):
                raise rules.not_resendable(letter)
            changed[pair] = replace(found, resent_as=letter.resent_as)
        return changed

    async def purge_deliveries(self, pairs: Sequence[Pair]) -> int:
        self._check_open()
        ended = {pair for pair in pairs if pair in self._deliveries}
        return self._forget(pair for pair in ended if self._deliveries[pair].state in DELIVERY.terminal)

    def _forget(self, pairs: Iterable[Pair]) -> int:
        gone = list(pairs)
        for event_id, to_agent_id in gone:
            del self._deliveries[event_id, to_agent_id]
            self._failed_attempts.pop((event_id, to_agent_id), None)
            self._recipients[event_id].remove(to_agent_id)
        return len(gone)

    def _prune_deliveries(self, before_ms: int, limit: int) -> int:
        ended = sorted(
            (each.closed_at_ms, pair)
            for pair, each in self._deliveries.items()
            if each.closed_at_ms is not None and each.closed_at_ms < before_ms and not is_undelivered(each)
        )
        return self._forget(pair for _, pair in ended[:limit])

    def _oldest_unaccepted_seq(self) -> int | None:
        return min((each.seq for each in self._deliveries.values() if each.state in _UNACCEPTED), default=None)
