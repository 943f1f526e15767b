"""When the certificates of this machine are read: to read them takes longer than a hundred calls."""

import httpx

__all__ = ["needs_certificates"]


def needs_certificates(url: str) -> bool:
    """What `verify` has to be for a client that calls this address only: without TLS nobody looks at certificates."""
    return httpx.URL(url).scheme == "https"
