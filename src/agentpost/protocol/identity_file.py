"""The section `## Delegation Directory` of an agent's IDENTITY.md: written in place, and nothing else is touched. Pure.

The file is somebody's own text. Its bytes before the section and after it stay as they are, whatever they are: line
ends, a missing newline at the end, bytes that are no UTF-8. The section begins at its heading and ends before the next
heading of its level or above, or at the end of the file; blank lines at its end belong to what follows. A heading
inside a code fence or an HTML comment is no heading.
"""

import re
from typing import Final

from agentpost.protocol.delegation import ESCALATION, Intent, Policy
from agentpost.protocol.errors import Code, Refusal

__all__ = ["HEADING", "render_section", "with_section"]

HEADING: Final = "## Delegation Directory"
_HEADING: Final = re.compile(rb" {0,3}##[ \t]+Delegation Directory[ \t]*#*[ \t]*")
_ANY_HEADING: Final = re.compile(rb" {0,3}#{1,2}(?:[ \t]|$)")
_FENCE: Final = re.compile(rb" {0,3}(`{3,}|~{3,})(.*)")
# A line of text with one of these below it is a heading too.
_UNDERLINE: Final = re.compile(rb" {0,3}(?:=+|-{2,})[ \t]*")
_NO_TEXT: Final = re.compile(rb"[ \t]*(?:$|[|>#*+-]|\d+[.)])")
_COLUMNS: Final = (
    "intent",
    "owner_agent",
    "backup_agent",
    "requires",
    "sla_claim_sec",
    "sla_update_sec",
    "escalate_after_sec",
    "close_notify",
)


def render_section(policy: Policy, *, applied_by: str, applied_at: str) -> str:
    """The section for one agent, from the heading to its last line."""
    lines = [
        HEADING,
        "",
        f"- version: {policy.version}",
        f"- checksum: {policy.checksum}",
        f"- updated at: {policy.updated_at}",
        f"- updated by: {policy.updated_by}",
        "",
        _row(_COLUMNS),
        _row(["---"] * len(_COLUMNS)),
        *(_row(_cells(each)) for each in sorted(policy.intents, key=lambda each: each.intent)),
        "",
        "Escalation defaults:",
        "",
        *(
            f"- {name}: {str(value).lower() if isinstance(value, bool) else value}"
            for name, value in ESCALATION.items()
        ),
        "",
        f"Applied by {applied_by} at {applied_at}.",
    ]
    return "\n".join(lines) + "\n"


def with_section(file: bytes, section: str) -> bytes:
    """The file with this section in the place of the one that it has, or at its end. Refused if it has two."""
    newline = b"\r\n" if b"\r\n" in file and file.count(b"\r\n") * 2 >= file.count(b"\n") else b"\n"
    text = section.encode().replace(b"\n", newline)
    found = _find(file)
    if len(found) > 1:
        raise Refusal(
            Code.CONFLICT,
            f"the file has the section {HEADING!r} {len(found)} times",
            field="file",
            hint="Keep one of them, then apply the policy again.",
        )
    if found:
        start, end = found[0]
        # The last line of the file may have no end; then the section has none either.
        return file[:start] + (text if file[start:end].endswith(b"\n") else text[: -len(newline)]) + file[end:]
    if not file:
        return text
    gap = b"" if file.endswith((b"\n\n", b"\r\n\r\n")) else newline if file.endswith(b"\n") else newline * 2
    return file + gap + text


def _find(file: bytes) -> list[tuple[int, int]]:
    """Where the sections begin and end."""
    lines = _lines(file)
    is_text = _outside(lines)
    places = [0]
    for line in lines:
        places.append(places[-1] + len(line))
    found: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        if is_text[at] and _HEADING.fullmatch(_bare(line)):
            end = next((after for after in range(at + 1, len(lines)) if _begins(lines, is_text, after)), len(lines))
            while end > at + 1 and not _bare(lines[end - 1]).strip():
                end -= 1
            found.append((places[at], places[end]))
    return found


def _lines(file: bytes) -> list[bytes]:
    """Lines that end with a newline only: a lone carriage return is a character like any other."""
    parts = file.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _begins(lines: list[bytes], is_text: list[bool], at: int) -> bool:
    """Whether another part of the document begins with this line."""
    if not is_text[at]:
        return False
    if _ANY_HEADING.match(_bare(lines[at])):
        return True
    below = at + 1 < len(lines) and is_text[at + 1] and _UNDERLINE.fullmatch(_bare(lines[at + 1]))
    return bool(below) and not _NO_TEXT.match(_bare(lines[at]))


def _outside(lines: list[bytes]) -> list[bool]:
    """For each line, whether it is outside of code fences and HTML comments."""
    found: list[bool] = []
    fence = b""
    in_comment = False
    for line in lines:
        bare = _bare(line)
        mark = _FENCE.fullmatch(bare)
        if in_comment:
            in_comment = b"-->" not in bare
            found.append(False)
        elif fence:
            found.append(False)
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = b""
        elif mark and not (mark[1][:1] == b"`" and b"`" in mark[2]):
            fence = mark[1]
            found.append(False)
        elif bare.lstrip(b" ").startswith(b"<!--"):
            in_comment = b"-->" not in bare.split(b"<!--", 1)[1]
            found.append(False)
        else:
            found.append(True)
    return found


def _bare(line: bytes) -> bytes:
    return line.rstrip(b"\n").rstrip(b"\r")


def _cells(row: Intent) -> list[str]:
    return [
        row.intent,
        row.owner_agent,
        row.backup_agent or "-",
        ", ".join(row.requires) or "-",
        str(row.sla_claim_sec),
        str(row.sla_update_sec),
        str(row.escalate_after_sec),
        ", ".join(row.close_notify) or "-",
    ]


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
