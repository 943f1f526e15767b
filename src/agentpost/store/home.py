"""A gateway's home directory: one gateway at a time, and nobody else looks in."""

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Final

from agentpost.protocol.errors import Code, Refusal

__all__ = ["Home", "sync_directory", "write_private"]

_DATABASE: Final = "agentpost.db"
_LOCK: Final = "gateway.lock"
_KEYS: Final = "keys"
_OPERATOR_SOCKET: Final = "operator.sock"
_MAILBOX: Final = "mailbox.db"
# How long a gateway that is gone may seem to have the home.
_HEIR_SECONDS: Final = 5.0


class Home:
    """The paths of a home. Making one changes nothing; `prepare` makes the directory, `lock` claims it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / _DATABASE
        self.keys = path / _KEYS
        self.operator_socket = path / _OPERATOR_SOCKET
        self.mailbox = path / _MAILBOX
        self._lock_fd: int | None = None

    def exists(self) -> bool:
        return self.database.exists()

    def prepare(self) -> None:
        """Make the directory if there is none, for its owner alone; refuse one that others can look into."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.keys.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            problem = f"the home {self.path} cannot be made: {error.strerror}"
            raise Refusal(Code.HOME_UNSAFE, problem, hint="Name a directory of yours with --home.") from None
        for directory in (self.path, self.keys):
            found = directory.stat()
            if found.st_uid != os.geteuid():
                raise Refusal(
                    Code.HOME_UNSAFE,
                    f"{directory} belongs to another user (uid {found.st_uid})",
                    hint=f"Run the gateway as that user, or name a home of yours with --home. To take it over: "
                    f"sudo chown -R {os.geteuid()} {directory}",
                )
            mode = found.st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise Refusal(
                    Code.HOME_UNSAFE,
                    f"{directory} is open to others (mode {stat.S_IMODE(mode):o}); run: chmod 700 {directory}",
                )

    def make_database(self) -> None:
        """Make an empty database file for its owner alone; SQLite gives its log and shared memory the same mode."""
        self.make_file(self.database)

    @staticmethod
    def make_file(path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def lock(self) -> None:
        """Claim the home for this process, until `unlock` or the end of the process, however it ends."""
        try:
            # A link could lead to the file of another program, which the process id would overwrite.
            fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            problem = f"the lock {self.path / _LOCK} cannot be opened: {error.strerror}"
            raise Refusal(
                Code.HOME_UNSAFE, problem, hint="It must be a file of yours. If it is a link, remove it."
            ) from None
        give_up_at = time.monotonic() + _HEIR_SECONDS
        while not _is_locked(fd):
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            if not _is_gone(holder) or time.monotonic() > give_up_at:
                os.close(fd)
                raise Refusal(Code.HOME_IN_USE, f"the home {self.path} is in use by process {holder or 'unknown'}")
            # It was killed while it started a program, which has the lock as well until it is that program.
            time.sleep(0.01)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_gone(process_id: str) -> bool:
    """Whether there is certainly no such process any more."""
    try:
        os.kill(int(process_id), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OverflowError, PermissionError):
        return False
    return False


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all, and durable when this returns."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a file that was just made or renamed is still there after a power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
