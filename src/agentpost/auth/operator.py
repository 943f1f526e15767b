"""The operator of this machine is whoever can read the key in the home. Being on loopback makes nobody an operator."""

import hmac
import stat
from typing import Final

from agentpost.auth.signing import from_text, to_text
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home, write_private
from agentpost.world import Chance

__all__ = ["OperatorKey", "load_operator_key"]

_FILE: Final = "operator.key"
_KEY_BYTES: Final = 32
_SCHEME: Final = "Bearer "


class OperatorKey:
    """The key of one home. It shows itself in the header that a client sends, and nowhere else."""

    def __init__(self, key: str) -> None:
        self._header = _SCHEME + key

    @property
    def header_value(self) -> str:
        """What a client on this machine sends as `Authorization`."""
        return self._header

    def check_operator(self, header_value: str | None) -> None:
        """Refuse a request whose `Authorization` is not the operator's. Takes as long for any wrong key."""
        given = (header_value or "").encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(given, self._header.encode("ascii")):
            raise Refusal(
                Code.INVALID_ACCESS_TOKEN,
                "this is for the operator of this gateway",
                hint="Send the key of the gateway's home as `Authorization: Bearer <key>`.",
            )

    def __repr__(self) -> str:
        return "OperatorKey(***)"


def load_operator_key(home: Home, chance: Chance) -> OperatorKey:
    """The operator key of this home; made now if it has none yet."""
    path = home.keys / _FILE
    if not path.exists():
        key = to_text(chance.entropy(_KEY_BYTES))
        write_private(path, key.encode("ascii") + b"\n")
        return OperatorKey(key)
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Refusal(
            Code.HOME_UNSAFE, f"{path} can be read by others (mode {stat.S_IMODE(mode):o}); run: chmod 600 {path}"
        )
    key = path.read_bytes().decode("ascii", "replace").strip()
    if len(from_text(key) or b"") != _KEY_BYTES:
        raise Refusal(Code.STORAGE_CORRUPT, f"{path} does not hold the key it should; delete it to get a new one")
    return OperatorKey(key)
