"""The delegation policy and its section in IDENTITY.md: pure functions, and their laws."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentpost.protocol.delegation import (
    ACK_THRESHOLD_MS,
    Ack,
    Policy,
    ProblemKind,
    checksum_of,
    next_version,
    problems_of,
    read_intents,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.identity_file import HEADING, render_section, with_section
from agentpost.protocol.timestamps import format_ms
from agentpost.testing import START_MS


def a_row(intent: str = "build", **changed: Any) -> dict[str, Any]:
    return {
        "intent": intent,
        "ownerAgent": "builder",
        "backupAgent": "helper",
        "requires": ["code.build"],
        "slaClaimSec": 60,
        "slaUpdateSec": 300,
        "escalateAfterSec": 900,
        "closeNotify": ["requester", "coordinator"],
    } | changed


def a_policy(*rows: dict[str, Any], **changed: Any) -> Policy:
    intents = read_intents(list(rows) or [a_row()])
    said: dict[str, Any] = {
        "version": "2026-02-25.1",
        "checksum": checksum_of(intents),
        "updated_at": format_ms(START_MS),
        "updated_by": "chief",
        "intents": intents,
    }
    return Policy(**(said | changed))


SECTION = render_section(a_policy(), applied_by="builder", applied_at=format_ms(START_MS))
OTHER = render_section(a_policy(a_row("review")), applied_by="builder", applied_at=format_ms(START_MS + 1))
AGENTS = {"builder": True, "helper": True, "chief": True}


@pytest.mark.req("OPS-8")
@pytest.mark.parametrize(
    "rows",
    [
        [],
        [a_row(intent="Build")],
        [a_row(intent="build it")],
        [a_row(), a_row()],
        [a_row(ownerAgent=None)],
        [a_row(slaClaimSec=0)],
        [a_row(escalateAfterSec=-1)],
        [a_row(slaUpdateSec="soon")],
        [a_row(note="free text")],
        [a_row(backupAgent="builder")],
        "no rows",
    ],
)
def test_a_table_that_is_not_valid_is_refused(rows: Any) -> None:
    """Columns, unique intents, an owner for each, and positive numbers are checked before a policy exists."""
    with pytest.raises(Refusal) as caught:
        read_intents(rows)
    assert caught.value.code is Code.INVALID_FIELD


def test_the_checksum_does_not_depend_on_the_order_of_the_rows() -> None:
    """The same rows have the same checksum; one changed number has another."""
    rows = [a_row("a"), a_row("b")]
    assert checksum_of(read_intents(rows)) == checksum_of(read_intents(rows[::-1]))
    assert checksum_of(read_intents(rows)) != checksum_of(read_intents([a_row("a"), a_row("b", slaClaimSec=61)]))


def test_versions_only_grow() -> None:
    """The next version is today's next one, also after a clock that ran ahead."""
    assert next_version(None, today="2026-02-25") == "2026-02-25.1"
    assert next_version("2026-02-24.7", today="2026-02-25") == "2026-02-25.1"
    assert next_version("2026-02-25.9", today="2026-02-25") == "2026-02-25.10"
    assert next_version("2027-01-01.1", today="2026-02-25") == "2027-01-01.2"


@pytest.mark.req("OPS-8")
def test_only_what_needs_action_is_a_problem() -> None:
    """A valid policy that everybody acknowledged has no problems; late, missing and wrong ACKs have one each."""
    policy = a_policy()
    right = {
        agent_id: Ack(agent_id=agent_id, version=policy.version, checksum=policy.checksum, at=policy.updated_at)
        for agent_id in AGENTS
    }
    later = START_MS + ACK_THRESHOLD_MS
    assert problems_of(None, {}, agents=AGENTS, now_ms=later) == []
    assert problems_of(policy, right, agents=AGENTS, now_ms=later) == []
    assert problems_of(policy, {}, agents=AGENTS, now_ms=later - 1) == []
    wrong = right | {"helper": Ack(agent_id="helper", version="2026-02-24.1", checksum="sha256:x", at="")}
    del wrong["chief"]
    found = problems_of(policy, wrong, agents={**AGENTS, "sleeper": False}, now_ms=later)
    assert [(each.kind, each.subject) for each in found] == [
        (ProblemKind.MISSING_ACK, "chief"),
        (ProblemKind.WRONG_ACK, "helper"),
    ]


@pytest.mark.req("OPS-8")
def test_a_policy_that_does_not_hold_is_a_problem() -> None:
    """A wrong checksum, an owner who is gone and an unknown name are problems; no backup is one warning for all."""
    found = problems_of(a_policy(checksum="sha256:0"), {}, agents=AGENTS, now_ms=START_MS)
    assert [each.kind for each in found] == [ProblemKind.INVALID_POLICY]
    found = problems_of(a_policy(), {}, agents={"helper": True}, now_ms=START_MS)
    assert [(each.kind, each.subject) for each in found] == [(ProblemKind.INVALID_POLICY, "build")]
    found = problems_of(a_policy(a_row(closeNotify=["ghost"])), {}, agents=AGENTS, now_ms=START_MS)
    assert [each.kind for each in found] == [ProblemKind.INVALID_POLICY]
    lonely = a_policy(a_row("a", backupAgent=None), a_row("b", backupAgent=None))
    (warning,) = problems_of(lonely, {}, agents=AGENTS, now_ms=START_MS)
    assert (warning.kind, warning.is_warning) == (ProblemKind.NO_BACKUP, True)


_LINES = st.sampled_from(
    [
        "text",
        "",
        "   ",
        "# Title",
        "### Deep",
        "```",
        "~~~~",
        "```python",
        "<!-- a comment",
        "-->",
        "<!-- short -->",
        "| a | b |",
        "---",
        "===",
        "    ## Delegation Directory",
        "the ## Delegation Directory is below",
        "### Delegation Directory",
        "## Delegation Directory of others",
        "\tumlaut \u00e4",
        "\x00\r lone",
    ]
)
_ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def _texts(draw: st.DrawFn) -> bytes:
    """What people write, with either line end, with or without one at the end of the file."""
    lines = draw(st.lists(_LINES, max_size=12))
    text = "".join(line + draw(_ENDS) for line in lines)
    return text.encode() + draw(st.sampled_from([b"", b"last line", b"\xff\xfe"]))


@pytest.mark.req("OPS-8")
@given(before=_texts())
def test_a_file_without_the_section_gets_it_at_its_end(before: bytes) -> None:
    """The bytes that were there are the beginning of the new file, and applying twice changes nothing more."""
    once = with_section(before, SECTION)
    assert once.startswith(before)
    assert HEADING.encode() in once
    if b"\x60\x60\x60" not in before and b"~~~" not in before and b"<!--" not in before:
        assert with_section(once, SECTION) == once


@pytest.mark.req("OPS-8")
@given(before=_texts(), after=_texts(), newline=_ENDS, heading=st.sampled_from(["# Next", "## Next"]))
def test_everything_outside_the_section_stays_to_the_byte(
    before: bytes, after: bytes, newline: str, heading: str
) -> None:
    """Whatever stands before the section and from the next heading on is the same afterwards, whatever it is."""
    # An open fence or comment before it would make the section part of that.
    assume(all(mark not in before for mark in (b"```", b"~~~", b"<!--")))
    if before and not before.endswith(b"\n"):
        before += newline.encode()
    gap = newline.encode() * 2
    tail = gap + heading.encode() + newline.encode() + after
    old = SECTION.strip().encode().replace(b"\n", newline.encode())
    file = before + old + tail
    changed = with_section(file, OTHER)
    assert changed.startswith(before)
    assert changed.endswith(tail.removeprefix(newline.encode()))
    inside = changed[len(before) : len(changed) - len(tail) + len(newline)]
    assert inside.decode().replace("\r\n", "\n") == OTHER
    assert with_section(changed, OTHER) == changed


@pytest.mark.req("OPS-8")
def test_two_sections_are_refused() -> None:
    """A file that has the section twice is not guessed about."""
    with pytest.raises(Refusal) as caught:
        with_section((SECTION + "\n# Other\n\n" + SECTION).encode(), OTHER)
    assert caught.value.code is Code.CONFLICT


@pytest.mark.req("OPS-8")
@pytest.mark.parametrize("fence", ["```\n{}\n```\n", "~~~ md\n{}\n~~~\n", "<!--\n{}\n-->\n"])
def test_a_section_inside_a_fence_or_a_comment_is_text(fence: str) -> None:
    """An example of the section in a code block is left alone, and the true section is the one that changes."""
    example = fence.format(SECTION)
    first = with_section(example.encode(), SECTION)
    assert first.startswith(example.encode())
    assert with_section(first, OTHER) == first.removesuffix(SECTION.encode()) + OTHER.encode()


def test_a_heading_that_is_underlined_ends_the_section_too() -> None:
    """Headings are also written with a line below them."""
    tail = "\nMy notes\n--------\nkeep me\n"
    assert with_section((SECTION + tail).encode(), OTHER) == (OTHER + tail).encode()


def test_a_section_at_the_end_without_a_newline_has_none_afterwards() -> None:
    """The end of the file stays as its author left it."""
    assert with_section(SECTION.rstrip("\n").encode(), OTHER) == OTHER.rstrip("\n").encode()
