"""One agent's mail, handed to its runtime. Knows nothing of other agents.

A worker hands over the oldest mail first: after a start that is the whole backlog, and what comes meanwhile stands
behind it (RTY-5). It is woken when mail arrives and when the timer of a retry runs out; nothing is polled.

Order. An agent that takes one event at a time gets what a sender said in the order in which it was said: while a
message waits for its retry, later ones from the same sender wait behind it, and other senders go on. A second message
often makes no sense before the first, and nobody's mail should suffer from somebody else's. The wait is bounded by the
attempts of the retry policy. Of a long backlog the first `_LOOK_AHEAD` events are considered at a time. An agent that
takes several events at once has no order to keep.

Speed. Turns that run at once do not wait for each other, and of turns that follow each other the end of one is written
with the beginning of the next, so that the store puts many of both into one commit.

An attempt is written before it is made, so that a crash during it can be seen. A runtime that may get the same event
twice needs no such trace: an attempt with mail that came just now is written together with its end, or by itself once
it lasts. Mail from before the start is always noted first: it may be what ended the gateway. Turns without such a note
that are over at once follow each other in one sitting, and their ends are written together.

A lease. What an agent had fetched when its runtime was changed stays with it for the time of the lease (RTY-3), and
holds nothing back meanwhile.

After a crash. An event that was handed over and has no outcome is *unclear*: its runtime is asked; if that cannot say
and is not idempotent, the event is neither repeated nor given up but shown as an incident, until an operator decides
(`Dispatcher.resolve`). It does not hold back what follows.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from agentpost.delivery.lanes import Lanes, Mail
from agentpost.delivery.ports import PatientRuntime, Result, ResultKind, Runtime, TurnLeftError
from agentpost.delivery.turns import Begun, Hold, Turns
from agentpost.delivery.wording import told
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.incidents import IncidentKind
from agentpost.store.interface import Store
from agentpost.store.values import BacklogItem, LedgerState
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["UNCLEAR", "Worker"]

_log = logging.getLogger(__name__)

UNCLEAR: Final = IncidentKind.INDETERMINATE
_LOOK_AHEAD: Final = 1024
_PAGE: Final = 256
_MOST_AT_ONCE: Final = 256
# A disk that is full now may have room again soon. The outcome is in memory meanwhile, and the agent is not run again.
_WRITE_AGAIN_SECONDS: Final = 5.0
# An attempt that lasts longer is written down while it lasts, for those who ask where their mail is.
_NOTE_AFTER_SECONDS: Final = 0.2
# After so long, others who wait for the loop have their turn.
_SITTING_MS: Final = 5


class Worker:
    """Hands the mail of one agent to one runtime, as much at once as that takes."""

    def __init__(
        self, agent_id: str, runtime: Runtime, store: Store, turns: Turns, clock: Clock, tasks: TaskOwner
    ) -> None:
        self._agent_id = agent_id
        self._runtime = runtime
        self._store = store
        self._turns = turns
        self._clock = clock
        self._tasks = tasks
        self._most = max(1, min(runtime.max_concurrent, _MOST_AT_ONCE))
        self._lanes = Lanes(is_ordered=self._most == 1)
        # Every open row that was read: in a lane, with the agent, being written, or left to an operator.
        self._known: set[EventId] = set()
        self._unclear: set[EventId] = set()
        self._without_content: dict[EventId, str] = {}
        # Attempts that are not written down, and when they began: by the time of day, and by a clock that nobody sets.
        self._unnoted: dict[EventId, tuple[int, int]] = {}
        self._noting: asyncio.TimerHandle | None = None
        self._read_through = 0
        self._has_more = True
        # What stands further on in the inbox came while this worker ran.
        self._fresh_after = store.inbox_position().latest_seq
        self._running = 0
        # Turns of sittings that are over, with when each began, and how many of such are being written. No turn begins
        # meanwhile: what a full disk does not take stays little.
        self._ended: list[tuple[Mail, Result, int | None]] = []
        self._writing = 0
        self._woken = asyncio.Event()
        self._is_stopping = False
        self.idle = asyncio.Event()
        self.idle.set()

    def mail_came(self, mail: Sequence[Mail] = ()) -> None:
        """There is mail, or content that some mail waited for."""
        if self._is_stopping:
            return
        if mail and not self._has_more and len(self._lanes) < _LOOK_AHEAD:
            # All that was there before is in the lanes: this comes next, and need not be read again.
            for each in mail:
                self._read_through = max(self._read_through, each.inbox_seq)
                self._add(each)
            self._begin_turns()
        else:
            self._has_more = True
            self._woken.set()
        if self._without_content:
            self._look_for_content()
            self._woken.set()

    def hurry(self, event_id: EventId) -> None:
        """What this mail waited for is there: the verdict on a claim."""
        if self._lanes.hurry(event_id):
            self._woken.set()

    def stop(self) -> None:
        """Begin no further turn; `run` returns when those that run have ended, or are left."""
        self._is_stopping = True
        # What was not begun is the next one's from now on.
        self._known.difference_update(self._lanes.event_ids())
        if isinstance(self._runtime, PatientRuntime):
            self._runtime.release()
        self._woken.set()

    def is_busy_with(self, event_id: EventId) -> bool:
        return event_id in self._known and event_id not in self._unclear

    def forget(self, event_id: EventId) -> None:
        """An operator decided about an unclear event: if it is still open, it is mail like any other."""
        self._unclear.discard(event_id)
        self._known.discard(event_id)
        # It stands further up. What was settled by hand is still known here, so counting alone would not find it.
        self._read_through = 0
        self.mail_came()

    async def run(self) -> None:
        while not self._is_stopping:
            self._woken.clear()
            self._begin_turns()
            await self._wait()
        await self.idle.wait()

    def _begin_turns(self) -> None:
        while self._is_free and (mail := self._next()) is not None:
            self._running += 1
            self.idle.clear()
            if self._is_unnoted(mail):
                # It may be over at once, and so may be those after it; if it is not, the next sitting begins.
                self._tasks.spawn(self._sit(mail), name=f"{self._agent_id}:sitting")
                return
            self._tasks.spawn(self._serve(mail), name=f"{self._agent_id}:turn")

    @property
    def _is_free(self) -> bool:
        return self._running < self._most and not self._writing

    async def _wait(self) -> None:
        """Until something changes, or the next retry is due and somebody is free for it."""
        due_at_ms = self._lanes.next_due_at_ms() if self._is_free else None
        if due_at_ms is None:
            await self._woken.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(due_at_ms - self._clock.monotonic_ms(), 0) / 1000):
                await self._woken.wait()

    def _next(self) -> Mail | None:
        if self._is_stopping:
            return None
        now_ms = self._clock.monotonic_ms()
        mail = self._lanes.take(now_ms)
        while mail is None and self._has_more and len(self._lanes) < _LOOK_AHEAD:
            self._read()
            mail = self._lanes.take(now_ms)
        return mail

    def _look_for_content(self) -> None:
        for event_id, sha256 in self._without_content.items():
            blob = self._store.blob(sha256)
            if blob is not None and blob.complete:
                self._lanes.hurry(event_id)

    def _read(self) -> None:
        """Take the next page of the backlog into the lanes."""
        page = self._store.backlog(self._agent_id, after_inbox_seq=self._read_through, limit=_PAGE)
        for item in page:
            self._read_through = item.entry.inbox_seq
            if item.entry.event_id not in self._known:
                try:
                    self._add(self._mail(item))
                except Refusal as refusal:
                    self._known.add(item.entry.event_id)
                    # It was read when it was accepted, so a newer version wrote it: it stays until that one is back.
                    _log.error("%s cannot be read any more: %s", item.entry.event_id, refusal.message)
        self._has_more = len(page) == _PAGE
        if not self._has_more and self._store.backlog_size(self._agent_id) > len(self._known):
            # Further up there is an event that was here before, for another agent, or that an operator released.
            self._read_through, self._has_more = 0, True

    def _mail(self, item: BacklogItem) -> Mail:
        entry = item.entry
        is_unclear = entry.state is LedgerState.ENGAGED
        # No retry waits for longer than that; the clock was set back where one seems to.
        latest_ms = entry.due_at_ms if is_unclear else self._clock.now_ms() + self._turns.longest_pause_ms
        due_at_ms = self._lane_time(min(entry.due_at_ms, latest_ms))
        return Mail(
            inbox_seq=entry.inbox_seq,
            event=decode_event(item.raw),
            attempts=entry.attempts,
            due_at_ms=due_at_ms,
            error=entry.error,
            is_unclear=is_unclear,
            is_fresh=entry.inbox_seq > self._fresh_after and not is_unclear and not entry.attempts,
            is_leased=is_unclear and due_at_ms > self._clock.monotonic_ms(),
            leased_until_ms=entry.due_at_ms,
        )

    def _add(self, mail: Mail) -> None:
        event_id = mail.event.event_id
        if event_id not in self._known:
            self._known.add(event_id)
            self._lanes.add(mail)

    def _lane_time(self, due_at_ms: int) -> int:
        """A time of day as the lanes have it: in monotonic time, so that setting the clock moves no retry."""
        return max(due_at_ms - self._clock.now_ms() + self._clock.monotonic_ms(), 0)

    async def _serve(self, mail: Mail) -> None:
        """Turn after turn, until nothing is due."""
        try:
            following: Mail | None = mail
            begun = await self._begin(mail)
            while following is not None:
                mail, ending = following, None
                if begun is not None:
                    ending = self._conclude(mail, begun.engagement.attempt, await self._engage(begun))
                following = self._next()
                if following is not None and ending is not None and self._most == 1:
                    # One commit a turn instead of two. Those who take several at once share commits anyway.
                    _, begun = await asyncio.gather(ending, self._begin(following))
                    continue
                if ending is not None:
                    await ending
                begun = None if following is None else await self._begin(following)
        except TurnLeftError:
            await self._leave(mail)
        finally:
            self._running -= 1
            self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if not (self._running or self._writing or self._ended):
            self.idle.set()
        self._wake_for_more()

    def _wake_for_more(self) -> None:
        if self._lanes or self._has_more:
            self._woken.set()

    def _is_unnoted(self, mail: Mail) -> bool:
        return mail.is_fresh and self._runtime.is_idempotent

    async def _sit(self, mail: Mail) -> None:
        """Turns without a note before them, one after the other: until one waits for something, or time is up."""
        over_at_ms = self._clock.monotonic_ms() + _SITTING_MS
        following: Mail | None = mail
        try:
            while following is not None:
                mail = following
                begun = self._turns.begin_at_once(mail.event, self._agent_id)
                if begun is None:
                    # There is more to it than to hand it over.
                    self._running += 1
                    self._tasks.spawn(self._serve(mail), name=f"{self._agent_id}:turn")
                    break
                self._unnoted[mail.event.event_id] = begun.at_ms, self._clock.monotonic_ms()
                # For each of them: the timer may have run out while the one before was being put off.
                self._note_later()
                # If this turn waits for something, the next one begins meanwhile.
                self._wake_for_more()
                result = await self._engage(begun)
                if result.kind is ResultKind.RETRY:
                    await self._conclude(mail, begun.engagement.attempt, result)
                else:
                    self._end_soon(mail, result)
                following = self._next_unnoted(over_at_ms)
            await self._write_ends()
        except TurnLeftError:
            await self._leave(mail)
        finally:
            self._running -= 1
            self._look_whether_idle()

    def _next_unnoted(self, over_at_ms: int) -> Mail | None:
        now_ms = self._clock.monotonic_ms()
        if self._writing or self._is_stopping or now_ms >= over_at_ms or len(self._ended) >= _MOST_AT_ONCE:
            return None
        mail = self._lanes.take(now_ms)
        if mail is not None and not self._is_unnoted(mail):
            self._lanes.put_back(mail)
            return None
        return mail

    def _end_soon(self, mail: Mail, result: Result) -> None:
        """Let the lane go on; the outcome is written with those of the other turns of the sitting."""
        if not self._ended:
            # For those that were over at once before one that is not.
            asyncio.get_running_loop().call_soon(self._write_soon)
        self._lanes.done(mail)
        self._ended.append((mail, result, self._unnoted_since(mail)))

    def _write_soon(self) -> None:
        if self._ended:
            self._tasks.spawn(self._write_ends(), name=f"{self._agent_id}:ends")

    async def _write_ends(self) -> None:
        """Write all outcomes that are not written: those that only say so at once, the others beside each other."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        self._writing += len(ended)
        silent = [(mail.event, at_ms) for mail, result, at_ms in ended if _is_silent(result)]
        try:
            if len(silent) == len(ended):
                await self._end_silently(silent)
            else:
                others = (self._end(*each) for each in ended if not _is_silent(each[1]))
                await asyncio.gather(self._end_silently(silent), *others)
        finally:
            self._writing -= len(ended)
            self._look_whether_idle()

    async def _end_silently(self, ended: Sequence[tuple[Event, int | None]]) -> None:
        while ended:
            try:
                await self._turns.end_silently(ended, self._agent_id)
            except Refusal as refusal:
                _log.error("%d outcomes for %s are not written: %s", len(ended), self._agent_id, refusal.message)
                if refusal.code is not Code.STORAGE_FULL:
                    return
                await asyncio.sleep(_WRITE_AGAIN_SECONDS)
            else:
                self._known.difference_update(event.event_id for event, _ in ended)
                return

    async def _begin(self, mail: Mail) -> Begun | None:
        """Record the attempt. None if the agent does not get this mail now; its lane knows then."""
        event = mail.event
        self._without_content.pop(event.event_id, None)
        if mail.is_leased:
            if (now_due := self._when_given_back(mail)) is None:
                return None
            mail = now_due
        if mail.is_unclear and await self._is_concluded(mail):
            return None
        is_noted = not self._is_unnoted(mail)
        begun = await self._turns.begin(
            event,
            self._agent_id,
            attempts=mail.attempts,
            error=mail.error,
            is_noted=is_noted,
            # What was left with such a runtime is still there: to wait for it again is no attempt.
            is_resumed=mail.is_unclear and isinstance(self._runtime, PatientRuntime),
            claims=True,
        )
        if isinstance(begun, Begun):
            if not is_noted:
                self._unnoted[event.event_id] = begun.at_ms, self._clock.monotonic_ms()
                self._note_later()
            return begun
        if begun.hold is Hold.WAITS:
            if event.payload_ref is not None:
                self._without_content[event.event_id] = event.payload_ref.sha256
            self._lanes.put_back(replace(mail, due_at_ms=self._lane_time(begun.due_at_ms)))
            # It may have come while it was noted that it had not.
            self._look_for_content()
            if self._turns.is_decided(event, self._agent_id):
                self._lanes.hurry(event.event_id)
        else:
            self._lanes.done(mail)
            self._known.discard(event.event_id)
        return None

    def _when_given_back(self, mail: Mail) -> Mail | None:
        """Leased mail as it stands now that its time seemed to be over; None if it is done, or stays with the agent."""
        item = self._store.inbox_item(mail.event.event_id, self._agent_id)
        if item is None or item.entry.state is LedgerState.SETTLED:
            self._known.discard(mail.event.event_id)
            return None
        found = replace(self._mail(item), is_leased=True)
        if found.leased_until_ms == mail.leased_until_ms:
            # It was not extended, so its time is over, whatever the time of day says by now.
            return found
        if found.due_at_ms > self._clock.monotonic_ms():
            self._lanes.put_back(found)
            return None
        return found

    async def _is_concluded(self, mail: Mail) -> bool:
        """Find out about mail that was handed over before a crash. False if it may be handed over again."""
        event_id = mail.event.event_id
        try:
            answer = await self._runtime.ask(event_id)
        except Exception as error:  # noqa: BLE001 - a runtime that cannot be asked cannot say
            _log.warning("the runtime of %s could not be asked: %s", self._agent_id, type(error).__name__)
            answer = None
        if answer is not None and answer.kind is not ResultKind.RETRY:
            self._lanes.done(mail)
            await self._end(mail, answer)
            return True
        if answer is not None or self._runtime.is_idempotent:
            return False
        self._unclear.add(event_id)
        self._lanes.done(mail)
        try:
            await self._turns.incident(UNCLEAR, mail.event, self._agent_id, attempts=mail.attempts)
        except Refusal as refusal:
            _log.error("an incident of %s could not be recorded: %s", self._agent_id, refusal.message)
        return True

    async def _engage(self, begun: Begun) -> Result:
        try:
            return await self._runtime.engage(begun.engagement)
        except TurnLeftError:
            raise
        except Exception as error:  # noqa: BLE001 - a runtime that breaks its promise is an attempt that failed
            return Result(kind=ResultKind.RETRY, error=told(error))

    async def _leave(self, mail: Mail) -> None:
        """The agent has this, and what becomes of it is not waited for: as after a crash, the next worker finds out."""
        at_ms = self._unnoted_since(mail)
        if at_ms is not None:
            await self._turns.note(mail.event.event_id, self._agent_id, at_ms=at_ms)

    def _conclude(self, mail: Mail, attempt: int, result: Result) -> Coroutine[Any, Any, None]:
        """Let the lane go on at once; what is given still has to be awaited, and writes the outcome."""
        due_at_ms = self._turns.retry_at_ms(result, attempt=attempt)
        engaged_at_ms = self._unnoted_since(mail)
        if due_at_ms is None:
            self._lanes.done(mail)
            return self._end(mail, result, engaged_at_ms)
        in_lane_ms = self._lane_time(due_at_ms)
        self._lanes.put_back(
            replace(mail, attempts=attempt, due_at_ms=in_lane_ms, error=result.error, is_unclear=False, is_fresh=False)
        )
        return self._postpone(mail, attempt, due_at_ms, result.error, engaged_at_ms)

    def _unnoted_since(self, mail: Mail) -> int | None:
        """When the attempt began that is over now and was not written down; None if it was."""
        at_ms, _ = self._unnoted.pop(mail.event.event_id, (None, 0))
        return at_ms

    def _note_later(self) -> None:
        if self._noting is None:
            self._noting = asyncio.get_running_loop().call_later(_NOTE_AFTER_SECONDS, self._note_what_lasts)

    def _note_what_lasts(self) -> None:
        """Write down the attempts that did not end soon."""
        self._noting = None
        begun_before_ms = self._clock.monotonic_ms() - round(_NOTE_AFTER_SECONDS * 1000)
        for event_id, (at_ms, begun_ms) in tuple(self._unnoted.items()):
            if begun_ms <= begun_before_ms:
                del self._unnoted[event_id]
                self._tasks.spawn(self._turns.note(event_id, self._agent_id, at_ms=at_ms), name="note")
        if self._unnoted:
            self._note_later()

    async def _end(self, mail: Mail, result: Result, engaged_at_ms: int | None = None) -> None:
        event_id = mail.event.event_id
        while True:
            try:
                await self._turns.end(mail.event, self._agent_id, result, engaged_at_ms=engaged_at_ms)
            except Refusal as refusal:
                _log.error("the outcome of %s for %s is not written: %s", event_id, self._agent_id, refusal.message)
                # UNAVAILABLE: the contract of its output cannot be checked right now.
                if refusal.code not in (Code.STORAGE_FULL, Code.UNAVAILABLE):
                    # A failed disk ends the gateway. The row stays as it is: unclear, at the next start.
                    return
                await asyncio.sleep(_WRITE_AGAIN_SECONDS)
            else:
                self._known.discard(event_id)
                return

    async def _postpone(
        self, mail: Mail, attempt: int, due_at_ms: int, error: str | None, engaged_at_ms: int | None
    ) -> None:
        if engaged_at_ms is not None:
            await self._turns.note(mail.event.event_id, self._agent_id, at_ms=engaged_at_ms)
        await self._turns.postpone(
            mail.event,
            self._agent_id,
            due_at_ms=due_at_ms,
            error=error,
            attempt=attempt,
            holds_back=self._most == 1,
        )


def _is_silent(result: Result) -> bool:
    """Whether nothing is said of the turn but that it is over."""
    return result.kind is ResultKind.PROCESSED and result.reply is None
