"""The handshake over real HTTP: every refusal with its status and body, the order of the checks, no secret in a log.

Where time matters the gateway lives by a clock that the test moves; nothing here waits.
"""

import io
import itertools
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from agentpost.edges.cli.gateway import quiet_libraries
from agentpost.protocol.snapshot import ROOM_VERSION
from agentpost.testing import FakeClock
from tests.edges.meshing import ROOM, Stranger, invite
from tests.edges.running import NO_LIMITS, ServedGateway, running_gateway, served_gateway

HOUR_MS = 3_600_000
PLENTY = 1_000_000_000
OTHER_ROOM = "/ansible/room/another-room"


class Door:
    """A gateway, those who knock, and what it logs meanwhile."""

    def __init__(self, seed: ServedGateway, homes: Path) -> None:
        self.seed = seed
        self.strangers: list[Stranger] = []
        self._homes = homes

    def stranger(self, name: str | None = None) -> Stranger:
        name = name or f"node-{len(self.strangers)}"
        made = Stranger(name, self._homes / f"stranger-{len(self.strangers)}", self.seed.url)
        self.strangers.append(made)
        return made


@contextmanager
def recorded_log() -> Iterator[io.StringIO]:
    """All that is logged meanwhile, with the libraries as quiet as `agentpost up` makes them."""
    loggers = [logging.getLogger(name) for name in ("", "httpx", "httpcore", "uvicorn", "websockets")]
    levels = [logger.level for logger in loggers]
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    quiet_libraries()
    try:
        yield text
    finally:
        logging.getLogger().removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """A gateway whose log is searched after every test for what must not be there."""
    settings = {"attempts_per_address": PLENTY, "attempts_per_token": PLENTY}
    with recorded_log() as log, served_gateway(tmp_path / "vps-jane", clock=FakeClock(), **settings) as seed:
        door = Door(seed, tmp_path)
        yield door
    assert "gateway vps-jane is ready" in log.getvalue()
    assert [secret for stranger in door.strangers for secret in stranger.secrets if secret in log.getvalue()] == []


def code_of(status: int, body: dict[str, Any]) -> tuple[int, str]:
    """Status and code of a refusal, whose body has the one shape that all errors have."""
    error = body["error"]
    assert {"code", "message", "hint"} <= error.keys() <= {"code", "message", "hint", "field"}
    assert error["message"]
    assert error["hint"]
    return status, error["code"]


class Violation(NamedTuple):
    """A way to break one rule: what happens beforehand, how the request differs, and what is answered."""

    name: str
    answer: tuple[int, str]
    prepare: Callable[["Scene"], None] | None = None
    change: Callable[[dict[str, Any]], None] | None = None


class Scene:
    """A node with an invite, at the door."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.stranger = door.stranger()
        self.token = invite(door.seed, self.stranger.node_id)

    def answer(self, *violations: Violation) -> tuple[int, str]:
        for violation in violations:
            if violation.prepare is not None:
                violation.prepare(self)
        body = self.stranger.request(self.token, nonce="the-nonce")
        for violation in violations:
            if violation.change is not None:
                violation.change(body)
        answer = self.stranger.post("/ansible/auth/exchange", body)
        return code_of(answer.status_code, answer.json())

    def use_the_invite(self) -> None:
        assert self.stranger.knock(self.stranger.ticket(self.token)) == (101, {})

    def come_late(self) -> None:
        self.door.seed.clock.advance(HOUR_MS)

    def use_the_nonce(self) -> None:
        assert self.stranger.exchange(self.token, nonce="the-nonce").status_code == 200

    def revoke(self) -> None:
        self.door.seed.operator.post("/operator/revoke", {"node": self.stranger.node_id})


# In the order of AUTH-5. Any two of them can be wrong with the same request.
IN_ORDER = [
    Violation("unknown token", (401, "invalid_token"), change=lambda body: body.update(inviteToken="agp_" + "A" * 43)),
    Violation("used invite", (409, "token_already_used"), prepare=Scene.use_the_invite),
    Violation("expired invite", (401, "expired_token"), prepare=Scene.come_late),
    Violation("another node", (403, "node_mismatch"), change=lambda body: body.update(nodeId="somebody-else")),
    Violation("used nonce", (409, "replay_detected"), prepare=Scene.use_the_nonce),
    Violation("no proof", (401, "node_proof_required"), change=lambda body: body.update(nodeProof=None)),
    Violation(
        "bad proof",
        (401, "node_proof_invalid"),
        change=lambda body: body.update(nodeProof=body["nodeProof"] and body["nodeProof"] | {"signature": "A" * 86}),
    ),
    Violation("withdrawn invite", (403, "node_revoked"), prepare=Scene.revoke),
    Violation("another room", (403, "room_denied"), change=lambda body: body.update(requestedRooms=["another-room"])),
]


@pytest.mark.req("AUTH-3", "AUTH-5", "AUTH-6", "AUTH-7", "AUTH-9")
def test_the_exchange_tells_the_first_rule_that_is_broken(door: Door) -> None:
    """A request that breaks one rule, or any two of them, gets the status and the code of the first in order."""
    for violation in IN_ORDER:
        assert Scene(door).answer(violation) == violation.answer, violation.name
    for earlier, later in itertools.combinations(IN_ORDER, 2):
        # A nonce is used before an invite is used up or withdrawn, and time passes last.
        happenings = sorted((earlier, later), key=_when)
        assert Scene(door).answer(*happenings) == earlier.answer, f"{earlier.name} and {later.name}"
    scene = Scene(door)
    assert scene.stranger.exchange(scene.token).status_code == 200


def _when(violation: Violation) -> int:
    return {"used nonce": 0, "expired invite": 2}.get(violation.name, 1)


@pytest.mark.req("AUTH-6", "AUTH-8")
def test_a_whole_request_that_was_overheard_is_a_replay(door: Door) -> None:
    """Nonce and challenge are good once, with an invite and without."""
    stranger = door.stranger()
    token = invite(door.seed, stranger.node_id)
    with_invite = stranger.request(token)
    assert stranger.post("/ansible/auth/exchange", with_invite).status_code == 200
    again = stranger.post("/ansible/auth/exchange", with_invite)
    assert code_of(again.status_code, again.json()) == (409, "replay_detected")
    assert stranger.knock(stranger.ticket(token)) == (101, {})
    by_key = stranger.request(None)
    assert stranger.post("/ansible/auth/exchange", by_key).status_code == 200
    again = stranger.post("/ansible/auth/exchange", by_key)
    assert code_of(again.status_code, again.json()) == (409, "replay_detected")


@pytest.mark.req("AUTH-6", "AUTH-7")
def test_a_challenge_of_another_time_or_node_proves_nothing(door: Door) -> None:
    """A proof over a challenge that has expired, or that was given to another node, is not valid."""
    stranger, other = door.stranger(), door.stranger()
    token = invite(door.seed, stranger.node_id)
    late = stranger.request(token)
    door.seed.clock.advance(60_000)
    foreign = stranger.request(token) | {"nodeProof": other.request(token)["nodeProof"]}
    for body in (late, foreign):
        answer = stranger.post("/ansible/auth/exchange", body)
        assert code_of(answer.status_code, answer.json()) == (401, "node_proof_invalid")


@pytest.mark.req("AUTH-1", "AUTH-6", "AUTH-9", "ROOM-6")
def test_the_gate_tells_the_first_thing_that_is_wrong_with_a_ticket(door: Door) -> None:
    """Invalid, expired, revoked, another room, used: each has its answer, and of two the earlier one."""
    clock = door.seed.clock

    def joined() -> Stranger:
        stranger = door.stranger()
        assert stranger.knock(stranger.ticket(invite(door.seed, stranger.node_id))) == (101, {})
        return stranger

    def refused(stranger: Stranger, ticket: str | None, path: str = ROOM) -> tuple[int, str]:
        return code_of(*stranger.knock(ticket, path))

    stranger = joined()
    ticket = stranger.ticket(None)
    altered = ticket[:-4] + ("AAAA" if not ticket.endswith("AAAA") else "BBBB")
    for invalid in (None, "nonsense", altered, "a.b.c"):
        assert refused(stranger, invalid) == (401, "invalid_ticket")
        assert refused(stranger, invalid, OTHER_ROOM) == (401, "invalid_ticket")
    assert refused(stranger, ticket, OTHER_ROOM) == (403, "room_denied")
    assert stranger.knock(ticket) == (101, {})
    assert refused(stranger, ticket) == (409, "ticket_already_used")
    assert refused(stranger, ticket, OTHER_ROOM) == (403, "room_denied")

    late = stranger.ticket(None)
    clock.advance(60_000)
    assert refused(stranger, late) == (401, "expired_ticket")
    assert refused(stranger, late, OTHER_ROOM) == (401, "expired_ticket")
    assert refused(stranger, ticket) == (401, "expired_ticket")
    assert refused(stranger, altered) == (401, "invalid_ticket")

    waiting, used = stranger.ticket(None), stranger.ticket(None)
    assert stranger.knock(used) == (101, {})
    door.seed.operator.post("/operator/revoke", {"node": stranger.node_id})
    for left in (waiting, used):
        assert refused(stranger, left) == (403, "node_revoked")
        assert refused(stranger, left, OTHER_ROOM) == (403, "node_revoked")
    clock.advance(60_000)
    assert refused(stranger, waiting) == (401, "expired_ticket")


@pytest.mark.req("AUTH-5", "AUTH-6")
def test_the_second_ticket_of_an_invite_comes_too_late(door: Door) -> None:
    """The invite is used up by the first connection, not by the exchange."""
    stranger = door.stranger()
    token = invite(door.seed, stranger.node_id)
    first, second = stranger.ticket(token), stranger.ticket(token)
    assert stranger.knock(second) == (101, {})
    assert code_of(*stranger.knock(first)) == (409, "token_already_used")


@pytest.mark.req("AUTH-9")
def test_a_ticket_travels_in_a_header_or_as_a_subprotocol_and_never_in_the_url(door: Door) -> None:
    """Both ways open a connection; in the URL it is refused, and is still good elsewhere."""
    stranger = door.stranger()
    ticket = stranger.ticket(invite(door.seed, stranger.node_id))
    for path in (f"{ROOM}?ticket={ticket}", f"{ROOM}?wsTicket={ticket}", f"{ROOM}/{ticket}", f"{ROOM}?{ticket}"):
        status, body = stranger.knock(None, path)
        assert code_of(status, body) == (401, "invalid_ticket")
        assert "never in the URL" in body["error"]["hint"]
    assert stranger.knock(ticket) == (101, {})
    protocols = ["ansible-yjs", f"ticket.{stranger.ticket(None)}"]
    assert stranger.knock(None, protocols=protocols) == (101, {})
    assert code_of(*stranger.knock(None, protocols=protocols)) == (409, "ticket_already_used")


@pytest.mark.req("AUTH-6")
def test_whoever_tries_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    """Challenge, exchange and gate each say 429 with a time, and after that time they answer again."""
    clock = FakeClock()
    with served_gateway(tmp_path / "vps-jane", clock=clock, attempts_per_address=1) as seed:
        stranger = Stranger("mbp-jane", tmp_path / "stranger", seed.url)
        guess = {"nodeId": "mbp-jane", "nonce": "nonce", "inviteToken": "agp_guess", "protocolVersion": ROOM_VERSION}
        for path, body, first in (
            ("/ansible/auth/challenge", {"nodeId": "mbp-jane"}, 200),
            ("/ansible/auth/exchange", guess, 401),
        ):
            assert stranger.post(path, body).status_code == first
            limited = stranger.post(path, body)
            assert code_of(limited.status_code, limited.json()) == (429, "rate_limited")
            clock.advance(int(limited.headers["retry-after"]) * 1000)
            assert stranger.post(path, body).status_code == first
        assert code_of(*stranger.knock("nonsense")) == (401, "invalid_ticket")
        assert code_of(*stranger.knock("nonsense")) == (429, "rate_limited")


@pytest.mark.req("AUTH-8")
def test_what_was_used_stays_used_when_the_gateway_comes_back(tmp_path: Path) -> None:
    """Nonce, challenge and ticket, after an orderly stop; and a ticket that was not used is still good."""
    clock, home = FakeClock(), tmp_path / "vps-jane"
    with served_gateway(home, clock=clock) as seed:
        stranger = Stranger("mbp-jane", tmp_path / "stranger", seed.url)
        assert stranger.knock(stranger.ticket(invite(seed))) == (101, {})
        request, used, unused = stranger.request(None), stranger.ticket(None), stranger.ticket(None)
        assert stranger.post("/ansible/auth/exchange", request).status_code == 200
        assert stranger.knock(used) == (101, {})
    with served_gateway(home, clock=clock, seed=2) as seed:
        stranger.url = seed.url
        replayed = stranger.post("/ansible/auth/exchange", request)
        assert code_of(replayed.status_code, replayed.json()) == (409, "replay_detected")
        assert code_of(*stranger.knock(used)) == (409, "ticket_already_used")
        assert stranger.knock(unused) == (101, {})


@pytest.mark.req("AUTH-8", "AUTH-9")
def test_kill_9_forgets_no_nonce_and_no_secret_is_in_the_log(tmp_path: Path) -> None:
    """A gateway process is killed and started again: the replay is still one, and its logs hold no secret."""
    home = tmp_path / "vps-jane"
    with running_gateway(home, *NO_LIMITS) as seed:
        stranger = Stranger("mbp-jane", tmp_path / "stranger", seed.url)
        token = invite(seed)
        request = stranger.request(token)
        assert stranger.post("/ansible/auth/exchange", request).status_code == 200
        seed.end(signal.SIGKILL)
    with running_gateway(home, *NO_LIMITS) as seed:
        stranger.url = seed.url
        replayed = stranger.post("/ansible/auth/exchange", request)
        assert code_of(replayed.status_code, replayed.json()) == (409, "replay_detected")
        ticket = stranger.ticket(token)
        # Wrong places for secrets, where a careless server would log them.
        assert stranger.knock(None, f"{ROOM}?ticket={ticket}")[0] == 401
        assert httpx.get(f"{seed.url}/ansible/room/{ticket}?token={token}").status_code == 404
        assert httpx.post(f"{seed.url}/ansible/auth/exchange", content=f'{{"inviteToken": "{token}"'.encode()).is_error
        assert stranger.exchange(token, nodeId=token).status_code == 400
        assert stranger.exchange(token, nodeProof={"challenge": ticket}).status_code == 400
        assert stranger.knock(ticket) == (101, {})
        assert stranger.knock(ticket)[0] == 409
        assert seed.end() == 0
        assert seed.process.stdout is not None
        shown = seed.log + seed.process.stdout.read()
    assert "gateway vps-jane is ready" in shown
    assert len(stranger.secrets) > 8
    assert [secret for secret in stranger.secrets if secret in shown] == []
