"""The operator's socket for `requests`, which schemathesis calls with."""

import socket
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

BASE_URL = "http://gateway"


def new_session() -> requests.Session:
    """A connection for each call: one that is kept may be closed by the gateway just when it is used again."""
    session = requests.Session()
    session.headers["connection"] = "close"
    return session


def unix_session(path: Path) -> requests.Session:
    """A session whose every call goes to this socket, whatever the URL says."""
    session = new_session()
    session.mount("http://", _UnixAdapter(path))
    return session


class _UnixAdapter(HTTPAdapter):
    def __init__(self, path: Path) -> None:
        self._pool = _UnixPool(path)
        super().__init__()

    def get_connection_with_tls_context(self, *_args: Any, **_more: Any) -> HTTPConnectionPool:
        return self._pool


class _UnixPool(HTTPConnectionPool):
    def __init__(self, path: Path) -> None:
        super().__init__("gateway")
        self._path = path

    def _new_conn(self) -> HTTPConnection:
        return _UnixConnection(self._path)


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("gateway")
        self._path = path

    def _new_conn(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(60)
        connected.connect(str(self._path))
        return connected
