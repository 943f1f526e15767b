"""What an agent outside the mesh can do, from its invite to its end, over real HTTP."""

import threading
import time
from typing import Any

import pytest

from agentpost.auth.external.wire import RevokeRequest
from tests.edges.external.client import CONTEXT, REVOKE, AgentClient, code_of, new_key
from tests.edges.external.conftest import ALL_MAIL, Door
from tests.edges.meshing import eventually

MINUTE_MS = 60_000
DAY_MS = 86_400_000


def send(client: AgentClient, to: str, body: str, **more: Any) -> dict[str, Any]:
    return client.ask("ansible_send_message", toAgents=[to], body=body, **more)


def inbox(client: AgentClient, **args: Any) -> list[dict[str, Any]]:
    return client.ask("ansible_read_messages", **args)["messages"]


@pytest.mark.req("EXT-1", "EXT-2", "EXT-3")
@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256"])
def test_two_agents_outside_talk_to_each_other(door: Door, algorithm: str) -> None:
    """Invite, exchange, send, read, claim, answer, settle, ask what became of it: with either kind of key."""
    codex, claude = door.agent("codex", key=new_key(algorithm)), door.agent("claude", key=new_key(algorithm))
    assert codex.session["grantedScopes"] == ["ansible.message.read", "ansible.message.send", "ansible.status.read"]
    sent = send(codex, "claude", "Can you review this?", subject="review", expectsReply=True)
    eventually(lambda: len(inbox(claude)) == 1)
    (line,) = inbox(claude)
    assert (line["fromAgentId"], line["subject"], line["corrId"]) == ("codex", "review", sent["corrId"])
    assert "body" not in str(line)
    whole = claude.ask("ansible_read_messages", eventIds=[line["eventId"]])["bodies"][0]
    assert whole["content"]["body"] == "Can you review this?"
    # Reading never consumes.
    assert len(inbox(claude)) == 1
    assert claude.ask("ansible_mark_read", eventIds=[line["eventId"]])["eventIds"]
    (claimed,) = claude.ask("ansible_read_messages", claim=True)["claimed"]
    assert claimed["eventId"] == line["eventId"]
    answer = claude.ask("ansible_send_message", replyTo=line["eventId"], body="It is fine.")
    assert answer["settled"]
    assert inbox(claude) == []
    eventually(lambda: len(inbox(codex)) == 1)
    reply = codex.ask("ansible_read_messages", eventIds=[inbox(codex)[0]["eventId"]])["bodies"][0]
    assert reply["content"]["body"] == "It is fine."
    (delivery,) = codex.ask("ansible_status", eventId=sent["eventId"])["deliveries"]
    assert (delivery["toAgentId"], delivery["state"]) == ("claude", "Replied")


@pytest.mark.req("OPS-1")
def test_a_long_inbox_shows_the_newest_and_counts_all(door: Door) -> None:
    """The newest lines first, older ones with `before`, what came after a place with `after`; the counts are of all."""
    codex, claude = door.agent("codex"), door.agent("claude")
    sent = [send(codex, "claude", f"number {number}", subject="x" * 500)["eventId"] for number in range(7)]
    eventually(lambda: claude.ask("ansible_status")["waiting"] == 7)
    first = claude.ask("ansible_read_messages", limit=3)
    assert [line["eventId"] for line in first["messages"]] == sent[:3:-1]
    assert (first["open"], first["unread"]) == (7, 7)
    assert {len(line["subject"]) for line in first["messages"]} == {120}
    older = inbox(claude, limit=100, before=first["messages"][-1]["inboxSeq"])
    assert [line["eventId"] for line in older] == sent[3::-1]
    newer = inbox(claude, after=older[-1]["inboxSeq"], limit=2)
    assert [line["eventId"] for line in newer] == sent[1:3]
    (opened,) = claude.ask("ansible_read_messages", eventIds=[sent[0]], maxCharacters=100)["bodies"]
    assert opened["content"]["body"] == "number 0"
    assert claude.ask("ansible_read_messages", limit=1)["unread"] == 6


@pytest.mark.req("EXT-2")
def test_mail_that_is_claimed_can_be_settled_without_an_answer(door: Door) -> None:
    """Processed, failed for good, or once more later: the sender hears of it as with any agent."""
    codex, claude = door.agent("codex"), door.agent("claude")
    sent = [send(codex, "claude", f"number {number}")["eventId"] for number in range(3)]
    eventually(lambda: len(inbox(claude)) == 3)
    claimed = claude.ask("ansible_read_messages", claim=True, limit=3)["claimed"]
    assert sorted(each["eventId"] for each in claimed) == sorted(sent)
    for event_id, how in zip(sent, ("processed", "failed", "retry"), strict=True):
        assert claude.ask("ansible_mark_read", eventIds=[event_id], settle=how, error="no such file")["settled"]
    eventually(lambda: _state(codex, sent[0]) == "Processed")
    assert [line["eventId"] for line in inbox(claude)] == [sent[2]]
    assert claude.ask("ansible_status")["waiting"] == 1
    # What was only read can be done with, but not fail.
    last = send(codex, "claude", "for your information")["eventId"]
    eventually(lambda: len(inbox(claude)) == 2)
    refused = claude.invoke("ansible_mark_read", {"eventIds": [last], "settle": "failed", "error": "x"})
    assert code_of(refused) == (409, "invalid_transition")
    assert claude.ask("ansible_mark_read", eventIds=[last], settle="processed")["settled"]
    assert not claude.ask("ansible_mark_read", eventIds=[last], settle="processed")["settled"]
    eventually(lambda: _state(codex, last) == "Processed")


def _state(client: AgentClient, event_id: str) -> str:
    return client.ask("ansible_status", eventId=event_id)["deliveries"][0]["state"]


@pytest.mark.req("EXT-2")
def test_a_session_lives_on_by_refreshing(door: Door) -> None:
    """An access token is good for ten minutes; the refresh gives a new one and a new refresh token, for days."""
    codex = door.agent()
    first_access, first_refresh = codex.access_token, codex.refresh_token
    door.clock.advance(11 * MINUTE_MS)
    assert code_of(codex.invoke("ansible_status")) == (401, "expired_access_token")
    assert codex.refresh().status_code == 200
    assert codex.access_token != first_access
    assert codex.refresh_token != first_refresh
    assert codex.ask("ansible_status")["agentId"] == "codex"
    for _ in range(3):
        door.clock.advance(2 * DAY_MS)
        assert code_of(codex.refresh()) == (
            401,
            "invalid_refresh_token",
        )  # the nonce is old, and the answer has a new one
        assert codex.refresh().status_code == 200
    door.clock.advance(4 * DAY_MS)
    assert code_of(codex.refresh()) == (401, "invalid_refresh_token")
    assert code_of(codex.refresh()) == (401, "invalid_refresh_token")


@pytest.mark.req("EXT-2")
def test_an_answer_that_was_lost_can_be_asked_for_again(door: Door) -> None:
    """Within seconds, with the same key: the tokens that got lost are void, and those of the second answer count."""
    codex = door.agent()
    before = codex.refresh_token
    assert codex.refresh().status_code == 200
    lost = codex.refresh_token
    assert codex.refresh(before).status_code == 200
    kept = codex.refresh_token
    assert kept != lost
    assert codex.ask("ansible_status")
    assert codex.refresh().status_code == 200
    # The one that got lost turns up after all: whoever has it is not the one who asked again.
    assert code_of(codex.refresh(lost)) == (401, "invalid_refresh_token")
    assert code_of(codex.invoke("ansible_status")) == (401, "invalid_access_token")


@pytest.mark.req("EXT-2", "EXT-5")
@pytest.mark.parametrize("which", ["sessionId", "agentId", "familyId"])
def test_an_operator_ends_sessions_at_once(gate: Door, which: str) -> None:
    """By session, by agent or by family; the next call is refused, and a second session of the agent by agent only."""
    codex, other = gate.agent("codex"), gate.agent("codex")
    named = {"agentId": "codex"} | {name: codex.session[name] for name in ("sessionId", "familyId")}
    ended = gate.operator.post("/ansible/agent/revoke", {which: named[which]})["sessionIds"]
    assert codex.session["sessionId"] in ended
    assert code_of(codex.invoke("ansible_status")) == (401, "invalid_access_token")
    assert code_of(codex.refresh()) == (401, "invalid_refresh_token")
    is_other_gone = other.invoke("ansible_status").status_code == 401
    assert is_other_gone == (which == "agentId")
    states = {each["sessionId"]: each["state"] for each in gate.operator.get("/ansible/agent/sessions")}
    assert states[codex.session["sessionId"]] == "revoked"


@pytest.mark.req("EXT-2")
def test_revoking_an_agent_takes_its_open_invites_too(door: Door) -> None:
    """An invite that nobody used yet is no way back in."""
    token = door.invite()
    door.operator.post("/ansible/agent/revoke", {"agentId": "codex"})
    assert code_of(door.client().exchange(token)) == (401, "invalid_invite")


@pytest.mark.req("EXT-2")
def test_a_call_that_waits_is_cut_within_a_second(door: Door) -> None:
    """Who waits for mail when the session is revoked hears of it at once, and gets nothing."""
    codex = door.agent()
    answers: list[tuple[int, str]] = []
    args = {"claim": True, "waitSeconds": 120}
    waiting = threading.Thread(target=lambda: answers.append(code_of(codex.invoke("ansible_read_messages", args))))
    waiting.start()
    eventually(lambda: any(entry["action"] == "agent.invoked" for entry in door.audit()))
    began = time.monotonic()
    door.operator.post("/ansible/agent/revoke", {"sessionId": codex.session["sessionId"]})
    waiting.join(60)
    assert answers == [(401, "invalid_access_token")]
    # A second is the rule; the rest is for a machine that is busy with something else.
    assert time.monotonic() - began < 10


@pytest.mark.req("EXT-2")
def test_a_call_that_is_let_in_just_before_the_end_does_nothing(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is revoked while its call is written down gives no mail, and is not waited in."""
    codex, claude = door.agent("codex"), door.agent("claude")
    send(claude, "codex", "one")
    eventually(lambda: len(inbox(codex)) == 1)
    gateway = door.served.gateway
    allow = gateway.external.allow

    async def revoked_meanwhile(*given: Any, **named: Any) -> Any:
        admitted = await allow(*given, **named)
        await gateway.external.revoke(RevokeRequest(session_id=codex.session["sessionId"]))
        return admitted

    monkeypatch.setattr(gateway.external, "allow", revoked_meanwhile)
    args = {"claim": True, "waitSeconds": 5}
    assert code_of(codex.invoke("ansible_read_messages", args)) == (401, "invalid_access_token")
    answered = [entry for entry in door.audit() if entry["action"] == "agent.answered"]
    assert answered[-1]["detail"]["code"] == "invalid_access_token"


@pytest.mark.req("EXT-2")
def test_an_agent_ends_its_own_session_and_no_other(door: Door) -> None:
    """Without a name its own; those of another agent are not for it."""
    codex, claude = door.agent("codex"), door.agent("claude")
    assert code_of(codex.call(REVOKE, {"sessionId": claude.session["sessionId"]})) == (403, "scope_denied")
    assert code_of(codex.call(REVOKE, {"agentId": "claude"})) == (403, "scope_denied")
    assert claude.ask("ansible_status")
    assert codex.call(REVOKE, {}).json()["sessionIds"] == [codex.session["sessionId"]]
    assert code_of(codex.invoke("ansible_status")) == (401, "invalid_access_token")


@pytest.mark.req("EXT-6")
def test_a_context_token_stays_within_one_conversation(door: Door) -> None:
    """Some of the scopes, one conversation, a few minutes: nothing else of the inbox exists for it."""
    codex, claude = door.agent("codex"), door.agent("claude")
    mine, other = send(codex, "claude", "one"), send(codex, "claude", "two")
    eventually(lambda: len(inbox(claude)) == 2)
    body = {"contextId": mine["corrId"], "scopes": ["ansible.message.read", "ansible.message.send"], "ttlSeconds": 60}
    granted = claude.call(CONTEXT, body)
    assert granted.status_code == 200, granted.text
    token = granted.json()["contextToken"]
    claude.secrets.add(token)

    def within(operation: str, context_id: str | None = None, **args: Any) -> Any:
        return claude.invoke(operation, args, context_id, token=token)

    lines = within("ansible_read_messages").json()["result"]["messages"]
    assert [line["eventId"] for line in lines] == [mine["eventId"]]
    assert within("ansible_read_messages", eventIds=[mine["eventId"]]).status_code == 200
    assert code_of(within("ansible_read_messages", eventIds=[other["eventId"]])) == (404, "not_found")
    assert code_of(within("ansible_mark_read", eventIds=[other["eventId"]])) == (404, "not_found")
    assert code_of(within("ansible_send_message", replyTo=other["eventId"], body="x")) == (404, "not_found")
    assert code_of(within("ansible_read_messages", claim=True)) == (400, "invalid_field")
    assert code_of(within("ansible_read_messages", other["corrId"])) == (403, "scope_denied")
    wrong = within("ansible_send_message", toAgents=["codex"], body="x", corrId=other["corrId"])
    assert code_of(wrong) == (403, "scope_denied")
    assert code_of(within("ansible_status")) == (403, "scope_denied")
    sent = within("ansible_send_message", toAgents=["codex"], body="done").json()
    assert sent["corrId"] == mine["corrId"]
    # It makes no other token, ends nothing, and expires.
    assert code_of(claude.call(CONTEXT, body, token=token)) == (403, "scope_denied")
    assert code_of(claude.call(REVOKE, {}, token=token)) == (403, "scope_denied")
    door.clock.advance(61_000)
    assert code_of(within("ansible_read_messages")) == (401, "expired_access_token")
    assert claude.ask("ansible_status")


@pytest.mark.req("EXT-6")
def test_a_context_token_counts_the_mail_of_its_conversation_only(door: Door) -> None:
    """How much waits, and how much of it is unread, is told of the one conversation, and not of the whole inbox."""
    codex, claude = door.agent("codex"), door.agent("claude")
    mine = send(codex, "claude", "one")
    send(codex, "claude", "one more", corrId=mine["corrId"])
    send(codex, "claude", "two")
    eventually(lambda: claude.ask("ansible_status")["waiting"] == 3)
    claude.ask("ansible_mark_read", eventIds=[mine["eventId"]])
    granted = claude.call(CONTEXT, {"contextId": mine["corrId"], "scopes": list(ALL_MAIL)}).json()
    claude.secrets.add(granted["contextToken"])

    def counts(context_id: str | None, token: str) -> tuple[int, int]:
        result = claude.invoke("ansible_status", {}, context_id, token=token).json()["result"]
        return result["waiting"], result["unread"]

    assert counts(None, granted["contextToken"]) == (2, 1)
    assert counts(mine["corrId"], claude.access_token) == (2, 1)
    assert counts(None, claude.access_token) == (3, 2)


@pytest.mark.req("EXT-6")
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"ttlSeconds": 301}, (400, "invalid_field")),
        ({"ttlSeconds": 59}, (400, "invalid_field")),
        ({"scopes": ["ansible.task.claim"]}, (403, "scope_denied")),
        ({"scopes": ["ansible.admin.all"]}, (403, "scope_denied")),
        ({"scopes": []}, (400, "invalid_field")),
        ({"contextId": "../../etc/passwd"}, (400, "invalid_field")),
        ({"surprise": 1}, (400, "invalid_field")),
    ],
    ids=str,
)
def test_a_context_token_is_never_more_than_its_session(
    gate: Door, changed: dict[str, Any], expected: tuple[int, str]
) -> None:
    """Not longer than five minutes, no scope that the session has not, one conversation that is one."""
    codex = gate.agent()
    body = {"contextId": "corr_01JV3T7E6Q8M1W2R4D9K0N5P7H", "scopes": ["ansible.message.read"], "ttlSeconds": 300}
    assert codex.call(CONTEXT, body).status_code == 200
    assert code_of(codex.call(CONTEXT, body | changed)) == expected


@pytest.mark.req("EXT-5", "OBS-10")
def test_everything_is_in_the_audit_log_by_session_and_by_conversation(door: Door) -> None:
    """Exchange, use, refresh, refusal, revocation: who, which operation, which scope, in the order it happened."""
    codex = door.agent("codex")
    door.agent("claude")
    sent = send(codex, "claude", "hello")
    assert codex.invoke("ansible_resend").status_code == 403
    assert codex.refresh().status_code == 200
    door.operator.post("/ansible/agent/revoke", {"agentId": "codex"})
    assert codex.invoke("ansible_status").status_code == 401
    found = door.audit(sessionId=codex.session["sessionId"])
    assert [entry["action"] for entry in found] == [
        "agent.exchanged",
        "agent.invoked",
        "agent.answered",
        "agent.refused",
        "agent.refreshed",
        "agent.revoked",
        "agent.refused",
    ]
    used, answered, denied = found[1], found[2], found[3]
    assert used["actor"] == answered["actor"] == denied["actor"] == "codex"
    assert used["detail"]["operation"] == "ansible_send_message"
    assert used["detail"]["scope"] == "ansible.message.send"
    assert answered["corrId"] == sent["corrId"]
    assert (denied["detail"]["operation"], denied["detail"]["code"]) == ("ansible_resend", "scope_denied")
    assert found[5]["actor"] == "operator"
    # After the revocation nobody has proven anything any more.
    assert (found[6]["actor"], found[6]["subject"]) == ("anonymous", "codex")
    by_corr = door.audit(corrId=sent["corrId"])
    assert [(entry["action"], entry["sessionId"]) for entry in by_corr] == [
        ("agent.answered", codex.session["sessionId"])
    ]


@pytest.mark.req("EXT-2")
def test_signing_keys_rotate_and_tokens_live_on(door: Door) -> None:
    """What the last key signed is good until it expires; with --drop nothing is, and a refresh is enough."""
    codex = door.agent()
    first = codex.access_token
    kid = door.operator.post("/ansible/agent/keys/rotate", {})["kid"]
    assert codex.ask("ansible_status")
    assert codex.refresh().status_code == 200
    assert codex.access_token != first
    assert codex.invoke("ansible_status", token=first).status_code == 200
    assert door.operator.post("/ansible/agent/keys/rotate", {"dropOthers": True})["kid"] != kid
    assert code_of(codex.invoke("ansible_status")) == (401, "invalid_access_token")
    assert code_of(codex.invoke("ansible_status", token=first)) == (401, "invalid_access_token")
    assert codex.refresh().status_code == 200
    assert codex.ask("ansible_status")
