"""How many files and connections this process may have open, and how many of them the public port may use."""

import resource
import sys
from typing import Final

__all__ = ["LEAST_OPEN_FILES", "most_connections", "open_files_limit", "raise_open_files"]

# Below this, a flood of a few hundred connections is felt.
LEAST_OPEN_FILES: Final = 4_096
_WANTED: Final = 32_768
_MOST_CONNECTIONS: Final = 16_384
# The store, the operator's socket, links that are dialled, programs that are run: what the public port leaves free.
_RESERVE: Final = 256


def open_files_limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def raise_open_files() -> None:
    """Take as many as the system lets this process have, up to what a gateway can use."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if most == resource.RLIM_INFINITY else min(_WANTED, most)
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    except (OSError, ValueError):
        # macOS has one more limit, which it does not tell; `doctor` says when what is left is short.
        return


def most_connections() -> int:
    """How many connections the public port may hold."""
    limit = open_files_limit()
    return min(_MOST_CONNECTIONS, max(limit - _RESERVE, limit // 2))
