"""The home: one gateway at a time, nobody else looks in, and keys that stay."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentpost.protocol.errors import Code
from agentpost.store.home import Home, write_private
from agentpost.store.identity import load_identity
from agentpost.store.sqlite import SqliteStore
from tests.store.building import open_sqlite, refused

HOLDER = """
import sys
from pathlib import Path
from agentpost.store.sqlite import SqliteStore

store = SqliteStore.open(Path(sys.argv[1]), node_id="node-a", epoch="epoch-1", now_ms=1)
print("open", flush=True)
sys.stdin.read()
"""

# What a gateway is that starts a program, between the fork and the exec.
FORKING_HOLDER = """
import os, sys, time
from pathlib import Path
from agentpost.store.home import Home

home = Home(Path(sys.argv[1]))
home.prepare()
home.lock()
if not os.fork():
    sys.stdin.readline()
    os._exit(0)
print("open", flush=True)
time.sleep(60)
"""


def close(store: SqliteStore) -> None:
    asyncio.run(store.close())


@contextmanager
def another_process_holds(home: Path, code: str = HOLDER) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield process
        finally:
            process.kill()


def test_a_home_is_opened_once_in_a_process(home: Path) -> None:
    """A second store on the same home is refused, and told which process has it."""
    store = open_sqlite(home)
    with refused(Code.HOME_IN_USE) as caught:
        open_sqlite(home)
    assert f"process {os.getpid()}" in caught.value.message
    close(store)
    close(open_sqlite(home))


def test_a_home_is_opened_once_on_a_machine(home: Path) -> None:
    """While another process runs on the home, opening it is refused by that process's number."""
    with another_process_holds(home) as process:
        with refused(Code.HOME_IN_USE) as caught:
            open_sqlite(home)
        assert f"process {process.pid}" in caught.value.message


def test_a_refused_opening_does_not_take_the_home_from_its_holder(home: Path) -> None:
    """Being refused twice is the same as being refused once: the holder still holds it, under its number."""
    with another_process_holds(home) as process:
        for _ in range(2):
            with refused(Code.HOME_IN_USE) as caught:
                open_sqlite(home)
            assert f"process {process.pid}" in caught.value.message


def test_a_killed_process_leaves_its_home_open_to_the_next(home: Path) -> None:
    """However a gateway ends, its home can be opened again at once."""
    with another_process_holds(home) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        close(open_sqlite(home))


def test_a_gateway_that_died_while_it_started_a_program_leaves_its_home_to_the_next(home: Path) -> None:
    """The lock lives a moment longer in what it had begun to start: whoever comes then waits for that moment."""
    with another_process_holds(home, FORKING_HOLDER) as process:
        process.kill()
        process.wait()
        with ThreadPoolExecutor() as elsewhere:
            opening = elsewhere.submit(open_sqlite, home)
            with pytest.raises(TimeoutError):
                opening.result(timeout=0.3)
            assert process.stdin is not None
            process.stdin.write(b"now\n")
            process.stdin.flush()
            close(opening.result(timeout=10))


def test_a_failed_opening_lets_go_of_the_home(home: Path) -> None:
    """A home that was refused for its owner's name can be opened under the right one."""
    close(open_sqlite(home))
    with refused(Code.CONFLICT):
        open_sqlite(home, node_id="node-z")
    close(open_sqlite(home))


def test_a_new_home_is_its_owners_alone(tmp_path: Path) -> None:
    """The directory and its keys are made for their owner alone, and parents are made as needed."""
    home = tmp_path / "var" / "agentpost"
    store = open_sqlite(home)
    load_identity(Home(home))
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "keys").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home / "keys").iterdir()}
    assert modes == {"signing.pem": 0o600, "sealing.pem": 0o600}
    assert stat.S_IMODE((home / "gateway.lock").stat().st_mode) == 0o600
    close(store)


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o710, 0o777])
@pytest.mark.parametrize("directory", ["", "keys"])
def test_a_home_that_others_can_look_into_is_refused(home: Path, mode: int, directory: str) -> None:
    """A home or a key directory that is open to others is not used, and the message says how to close it."""
    (home / "keys").mkdir(mode=0o700)
    (home / directory).chmod(mode)
    with refused(Code.HOME_UNSAFE) as caught:
        open_sqlite(home)
    assert "chmod 700" in caught.value.message
    assert not Home(home).exists()


def test_a_home_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file where the home should be is told as such."""
    (tmp_path / "file").write_text("something else")
    with refused(Code.HOME_UNSAFE):
        open_sqlite(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "something else"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(home: Path, mode: int) -> None:
    """A private key that others may have seen is not used."""
    Home(home).prepare()
    load_identity(Home(home))
    key = home / "keys" / "signing.pem"
    key.chmod(mode)
    with refused(Code.HOME_UNSAFE) as caught:
        load_identity(Home(home))
    assert "chmod 600" in caught.value.message


def test_the_identity_of_a_home_stays(home: Path, tmp_path: Path) -> None:
    """The keys are made once, each home has its own, and both keys of a home differ."""
    Home(home).prepare()
    other = Home(tmp_path / "other")
    other.prepare()
    first, again, elsewhere = load_identity(Home(home)), load_identity(Home(home)), load_identity(other)
    assert (first.signing_public, first.sealing_public) == (again.signing_public, again.sealing_public)
    keys = {first.signing_public, first.sealing_public, elsewhere.signing_public, elsewhere.sealing_public}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {43}


@pytest.mark.req("AUTH-9")
def test_an_identity_shows_its_public_halves_only(home: Path) -> None:
    """What may end up in a log has no private key in it."""
    Home(home).prepare()
    identity = load_identity(Home(home))
    for shown in (repr(identity), str(identity), f"{identity}"):
        assert identity.signing_public in shown
        assert identity.sealing_public in shown
        assert "PRIVATE" not in shown
        for secret in (identity.signing.private_bytes_raw(), identity.sealing.private_bytes_raw()):
            assert secret.hex() not in shown
            assert repr(secret) not in shown


@pytest.mark.parametrize(
    "content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_key_is_refused_and_not_replaced(home: Path, content: bytes) -> None:
    """A key that cannot be read is not silently made anew: the node would be another one."""
    Home(home).prepare()
    write_private(home / "keys" / "signing.pem", content)
    with refused(Code.STORAGE_CORRUPT):
        load_identity(Home(home))
    assert (home / "keys" / "signing.pem").read_bytes() == content


def test_a_key_of_the_wrong_kind_is_refused(home: Path) -> None:
    """The sealing key does not sign."""
    Home(home).prepare()
    load_identity(Home(home))
    keys = home / "keys"
    write_private(keys / "signing.pem", (keys / "sealing.pem").read_bytes())
    with refused(Code.STORAGE_CORRUPT):
        load_identity(Home(home))


def test_a_private_file_is_replaced_whole(home: Path) -> None:
    """A rewrite leaves the new content, for the owner alone, and no draft beside it."""
    (home / "secret.new").write_bytes(b"left over from a crash")
    write_private(home / "secret", b"one")
    write_private(home / "secret", b"two")
    assert (home / "secret").read_bytes() == b"two"
    assert stat.S_IMODE((home / "secret").stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == ["secret"]


def test_a_home_that_cannot_be_made_is_to_be_named_elsewhere() -> None:
    """Whoever may not write there is told so, and how to name a place of their own."""
    with refused(Code.HOME_UNSAFE) as caught:
        Home(Path("/proc/agentpost/vps-jane")).prepare()
    assert "--home" in caught.value.hint


def test_a_lock_that_is_a_link_is_refused(home: Path, tmp_path: Path) -> None:
    """A link in the place of the lock leads to a file that the gateway must not write to."""
    other = tmp_path / "other"
    other.write_text("of another program")
    (home / "gateway.lock").symlink_to(other)
    with refused(Code.HOME_UNSAFE):
        open_sqlite(home)
    assert other.read_text() == "of another program"
    (home / "gateway.lock").unlink()
    close(open_sqlite(home))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("part", [".", "keys"])
def test_a_home_of_another_user_is_refused(home: Path, part: str) -> None:
    """Who owns the directory can put other files into it, whatever its mode says."""
    close(open_sqlite(home))
    os.chown(home / part, 12_345, -1)
    with refused(Code.HOME_UNSAFE) as caught:
        open_sqlite(home)
    assert "belongs to another user (uid 12345)" in caught.value.message
