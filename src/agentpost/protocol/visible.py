"""Text that others wrote, with all that a terminal or a reader of a log would obey, or not see, made visible.

These are control characters (C0 and C1, ESC and CSI among them), marks of the writing direction, line separators of
Unicode, and halves of characters. What they are is written out instead: ESC as `\\x1b`, U+202E as `\\u202e`.
"""

import re
from typing import Final

__all__ = ["in_json", "in_one_line", "visible"]

# A line break and a tab are text; so is a carriage return before a line break.
_UNSEEN: Final = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with its lines, for a terminal."""
    return _UNSEEN.sub(_written_out, text)


def in_one_line(text: str) -> str:
    """The text as one line or one cell: a line break in it is written out, and cannot begin a line of its own."""
    return visible(text).replace("\r", "\\r").replace("\n", "\\n")


def in_json(document: str) -> str:
    """A JSON document that says the same: these characters are written as escapes in its strings."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
