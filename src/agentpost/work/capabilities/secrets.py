"""What must not be published: keys, passwords and tokens. Pure.

A manifest and the skill that goes with it reach every gateway of the mesh, so one that carries a secret is refused. Two
signs are looked for: a text under a name that means a secret, and a text that has the form of one.
"""

import re
from collections.abc import Iterable
from typing import Final, cast

from agentpost.protocol.errors import Code, Refusal
from agentpost.work.skills.bundle import BundleFile

__all__ = ["refuse_secret_files", "refuse_secrets"]

_NAMES: Final = re.compile(
    r"(?:^|[_-])(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|access[_-]?token|"
    r"auth[_-]?token|refresh[_-]?token|bearer|credentials?|client[_-]?secret)$",
    re.IGNORECASE,
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Spellings of "to be filled in", which a contract may well show.
_PLACEHOLDER: Final = re.compile(
    r"\s*|[<{$*.x…-].*|(?:your|example|changeme|redacted|none|null|env:)\b.*", re.IGNORECASE
)
_FORMS: Final = (
    ("a private key", re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")),
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})")),
    ("a Slack token", re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}")),
    ("an API key", re.compile(r"\bsk-(?:[a-z]+-)*[A-Za-z0-9_-]{20,}")),
    ("a Google API key", re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b")),
    ("a JSON web token", re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}")),
    ("a bearer token", re.compile(r"\b[Bb]earer [A-Za-z0-9._~+/-]{20,}")),
    ("a password in a URL", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@<{$]+:[^\s/@<{$]+@")),
)
_FILES: Final = re.compile(
    r"(?:^|/)(?:\.env(?:\.[^/]*)?|id_(?:rsa|dsa|ecdsa|ed25519)|[^/]*\.(?:pem|p12|pfx|key|keystore))$"
)


def refuse_secrets(value: object, *, field: str) -> None:
    """Refuse plain values with a secret in them. The refusal says where it is, and never what."""
    pending: list[tuple[str, str, object]] = [(field, "", value)]
    while pending:
        path, name, each = pending.pop()
        if isinstance(each, dict):
            pending += [(f"{path}.{key}", key, inner) for key, inner in cast("dict[str, object]", each).items()]
        elif isinstance(each, list | tuple):
            pending += [(path, name, inner) for inner in cast("list[object]", each)]
        elif isinstance(each, str):
            if _NAMES.search(_CAMEL.sub("_", name)) and not _PLACEHOLDER.fullmatch(each):
                raise _refused(path, "a text under a name that means a secret")
            if (found := _form_of(each)) is not None:
                raise _refused(path, found)


def refuse_secret_files(files: Iterable[BundleFile]) -> None:
    """Refuse a skill with a file that is made for secrets, or with a text that has the form of one."""
    for file in files:
        if _FILES.search(file.path):
            raise _refused(file.path, "a file made for secrets")
        if (found := _form_of(file.data.decode("utf-8", "replace"))) is not None:
            raise _refused(file.path, found)


def _form_of(text: str) -> str | None:
    return next((name for name, form in _FORMS if form.search(text)), None)


def _refused(where: str, what: str) -> Refusal:
    return Refusal(
        Code.INVALID_FIELD,
        f"{where[:120]} looks like {what}; what is published reaches every gateway",
        field=where[:120],
        hint="Take it out. The executor reads its secrets from its own machine.",
    )
