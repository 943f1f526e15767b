"""A disk that loses power, fills up or breaks at a chosen write. Knows SQLite's files, nothing of the store.

    with Disk(cut_at=17) as disk:
        db = apsw.Connection(path, vfs=disk.name)  # any number of connections, in any threads of the process
        ...                                        # until the power goes, and every change is refused
        db.close()
    disk.survive(target, keep=Keep.TORN, seed=3)   # the files as they are when the power comes back

SQLite runs on real files through the `unix` VFS and sees every one of its own writes. Beside them the disk
keeps a model: for each file the bytes that a power cut cannot take, and the changes made since the last sync;
for each name the files it has stood for since its directory was last synced. `survive` draws on the model.

The model is Linux as SQLite's `unix` VFS uses it:

- a sync makes a file's changes and its own creation durable; the first sync of a journal or WAL syncs the
  directory too, and with it every creation and deletion there;
- a sync that fails loses what was pending, whatever a later sync says: the kernel marks the pages clean. The next sync
  of each other handle that was open then fails as well, once, although it does its work; later ones say yes;
- bytes next to a write are safe (SQLITE_IOCAP_POWERSAFE_OVERWRITE), and a sector of 512 bytes is never torn.

The `-shm` file has no part in it: it does not outlive the process, let alone the power.

Why ctypes: a fault raised as an exception from a Python `apsw.VFSFile` comes out of the call that SQLite was
serving even where SQLite itself shrugs it off. A commit that stands would look as if it had failed, because
the automatic checkpoint after it did; closing a connection would raise. So the VFS is registered through
APSW, and then its `xOpen` and `xDelete`, and the four methods of a file that matter, are replaced by
functions that return result codes, as the real disk does. Reads, locks and shared memory stay native.
"""

import atexit
import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

import apsw

__all__ = ["SECTOR_BYTES", "Disk", "Fault", "Keep", "Op", "Point", "refusal"]

Op = Literal["open-create", "write", "sync", "truncate", "delete"]

SECTOR_BYTES: Final = 512


class Keep(Enum):
    """How much of what was never synced is still there when the power comes back."""

    NOTHING = "nothing"
    """Only what was synced: the disk wrote nothing on its own."""
    EVERYTHING = "everything"
    """All of it: the process died and the machine did not."""
    TORN = "torn"
    """Some of it: each sector, length and name is as it was at some moment since its last sync."""


class Fault(Enum):
    """What is wrong with a disk that still has power."""

    FULL = "full"
    """No room (ENOSPC)."""
    EIO = "eio"
    """A broken medium (EIO)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One call by which SQLite changes the disk: where a power cut or a fault can fall."""

    index: int
    op: Op
    file: str
    """The file's name, without its directory."""
    offset: int = 0
    """Where a write begins; the new length of a truncated file."""
    size: int = 0
    """How many bytes a write has."""


_EIO_CODES: Final[dict[Op, int]] = {
    "open-create": apsw.SQLITE_CANTOPEN,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


def refusal(op: Op, fault: Fault = Fault.EIO) -> int:
    """The extended result code that the `unix` VFS gives SQLite when `op` fails this way.

    Only a write says that the disk is full; the other calls have one code each for whatever went wrong.
    """
    return apsw.SQLITE_FULL if (op, fault) == ("write", Fault.FULL) else _EIO_CODES[op]


class Disk:
    """A disk that loses power, fills up or breaks at a chosen write point.

    `cut_at` is the number of the point at which the power goes: neither that call nor any later one that
    changes something takes effect. `fault` strikes at point `fault_at`, and at every one after it if it is
    `sticky`; a call that is struck fails and changes nothing. `only` narrows the choice: the cut or the fault
    falls on the first point from that number on that it accepts.

    Connections may outlive the `with` block, which only takes the VFS's name off SQLite's list.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        *,
        cut_at: int | None = None,
        fault: Fault | None = None,
        fault_at: int | None = None,
        sticky: bool = False,
        only: Callable[[Point], bool] | None = None,
    ) -> None:
        if (fault is None) != (fault_at is None):
            raise ValueError("fault and fault_at go together")
        self.name: str = f"faulty-disk-{next(self._numbers)}"
        self.points: list[Point] = []
        """Every write point so far, in order; when `cut_at` has come, the last one is where the power went."""
        self.struck: list[Point] = []
        """The points that the fault made fail."""
        self._cut_at = cut_at
        self._fault = fault
        self._fault_at = fault_at
        self._sticky = sticky
        self._only = only
        self._has_power = True
        self._names: dict[Path, _Name] = {}
        # Reentrant: the garbage collector may run under it, and close a forgotten connection to this disk.
        self._lock = threading.RLock()
        self._vfs: apsw.VFS | None = None

    def __enter__(self) -> Self:
        if self._vfs is not None:
            raise RuntimeError("a disk is used once")
        self._vfs = apsw.VFS(self.name, base=_BASE_NAME)
        _take_over(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._vfs is not None:
            self._vfs.unregister()

    @property
    def has_power(self) -> bool:
        """False from the cut on."""
        return self._has_power

    def cut(self) -> None:
        """The power goes now, between two points."""
        with self._lock:
            self._has_power = False

    def survive(self, target: Path, *, keep: Keep, seed: int = 0) -> None:
        """Write into `target`, an empty or new directory, what is on the disk when the power comes back.

        The disk itself is left alone, so one cut can be survived in many ways; while there is power, the
        answer is for a cut at this moment. `seed` chooses among the outcomes of `Keep.TORN`.
        """
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            # A WAL or shared memory of an earlier survivor would be taken for this one's.
            raise FileExistsError(f"{target} is not empty")
        random = Random(seed)
        with self._lock:
            for path, name in self._names.items():
                content = name.after(keep, random)
                if content is not None:
                    (target / path.name).write_bytes(content.after(keep, random))

    # What the VFS asks of the disk. Each answers with a result code of SQLite's.

    def _open(self, name_address: int | None, file: int, flags: int, flags_out: int | None) -> int:
        if name_address is None or not flags & _LASTING_FILES:
            return _base_open(_BASE_ADDRESS, name_address, file, flags, flags_out)
        path = Path(os.fsdecode(ctypes.string_at(name_address)))
        with self._lock:
            if flags & apsw.SQLITE_OPEN_MAIN_DB:
                # What an earlier run left survives even if the power goes before SQLite opens it.
                self._name(path.with_name(path.name + "-journal"))
                self._name(path.with_name(path.name + "-wal"))
            name = self._name(path)
            content = name.stood_for[-1]
            if content is None and flags & apsw.SQLITE_OPEN_CREATE:
                content = _Content()
                if code := self._point("open-create", path, on_cut=lambda: name.interrupt(content)):
                    c_void_p.from_address(file).value = None  # no methods: SQLite has nothing to close
                    return code
            code = _base_open(_BASE_ADDRESS, name_address, file, flags, flags_out)
            if code == apsw.SQLITE_OK and content is not None:
                if content is not name.stood_for[-1]:
                    name.stood_for.append(content)
                _handles[file] = _Handle(
                    disk=self,
                    path=path,
                    content=content,
                    base=_replace_methods(file),
                    syncs_directory=bool(flags & _JOURNALS and flags & apsw.SQLITE_OPEN_CREATE),
                )
            return code

    def _delete(self, name_address: int, sync_directory: bool) -> int:
        path = Path(os.fsdecode(ctypes.string_at(name_address)))
        with self._lock:
            name = self._name(path)
            code = apsw.SQLITE_OK
            if name.stood_for[-1] is not None:
                code = self._point("delete", path, on_cut=lambda: name.interrupt(None))
            if code == apsw.SQLITE_OK:
                code = _base_delete(_BASE_ADDRESS, name_address, 0)
            if code == apsw.SQLITE_OK:
                name.stood_for.append(None)
                if sync_directory:
                    self._sync_directory(path.parent)
            return code

    def _write(self, handle: "_Handle", file: int, data: int, size: int, offset: int) -> int:
        change = _Change(offset, ctypes.string_at(data, size))
        with self._lock:
            code = self._point("write", handle.path, offset, size, lambda: handle.content.interrupt(change))
            if code == apsw.SQLITE_OK:
                code = handle.base.write(file, data, size, offset)
            if code == apsw.SQLITE_OK:
                handle.content.change(change)
            return code

    def _truncate(self, handle: "_Handle", file: int, size: int) -> int:
        change = _Change(size, None)
        with self._lock:
            code = self._point("truncate", handle.path, size, 0, lambda: handle.content.interrupt(change))
            if code == apsw.SQLITE_OK:
                code = handle.base.truncate(file, size)
            if code == apsw.SQLITE_OK:
                handle.content.change(change)
            return code

    def _sync(self, handle: "_Handle") -> int:
        # The real file is not synced: only the model says what lasts, and a real sync is slow.
        with self._lock:
            if code := self._point("sync", handle.path):
                if self._has_power:
                    handle.content.pending.clear()
                    for other in _handles.values():
                        if other is not handle and other.content is handle.content:
                            other.has_missed_failure = True
                return code
            handle.content.sync()
            self._names[handle.path].sync(handle.content)
            if handle.syncs_directory:
                self._sync_directory(handle.path.parent)
                handle.syncs_directory = False
            failed_before, handle.has_missed_failure = handle.has_missed_failure, False
            return refusal("sync") if failed_before else apsw.SQLITE_OK

    def _close(self, handle: "_Handle", file: int) -> int:
        with self._lock:
            del _handles[file]
            return handle.base.close(file)

    def _point(
        self, op: Op, path: Path, offset: int = 0, size: int = 0, on_cut: Callable[[], None] | None = None
    ) -> int:
        """Count a write point, and say with which code it fails, if it does.

        `on_cut` notes in the model what may have happened if the power went while the call was under way.
        """
        if not self._has_power:
            return refusal(op)
        point = Point(index=len(self.points), op=op, file=path.name, offset=offset, size=size)
        self.points.append(point)
        if self._only is not None and not self._only(point):
            return apsw.SQLITE_OK
        if self._cut_at is not None and point.index >= self._cut_at:
            self._has_power = False
            if on_cut is not None:
                on_cut()
            return refusal(op)
        if self._fault is not None and self._fault_at is not None and point.index >= self._fault_at:
            if self.struck and not self._sticky:
                return apsw.SQLITE_OK
            self.struck.append(point)
            return refusal(op, self._fault)
        return apsw.SQLITE_OK

    def _name(self, path: Path) -> "_Name":
        """The model of a name. What was there before, or came or went without SQLite, is taken as synced."""
        name = self._names.get(path)
        if name is None or (name.stood_for[-1] is not None) != path.exists():
            name = self._names[path] = _Name(_Content(path.read_bytes()) if path.exists() else None)
        return name

    def _sync_directory(self, directory: Path) -> None:
        for path, name in self._names.items():
            if path.parent == directory:
                del name.stood_for[:-1]


# The model.


class _Change(NamedTuple):
    """A write of `data` at `offset`, or without data a truncation to `offset`."""

    offset: int
    data: bytes | None

    def apply(self, image: bytearray) -> None:
        if self.data is None:
            del image[self.offset :]
        if self.offset > len(image):
            image.extend(bytes(self.offset - len(image)))
        if self.data is not None:
            image[self.offset : self.offset + len(self.data)] = self.data

    def sectors(self, length_before: int) -> range:
        """The sectors that change in a file that was this long."""
        end = length_before if self.data is None else self.offset + len(self.data)
        start, end = min(self.offset, end), max(self.offset, end)
        return range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))


class _Content:
    """The bytes of one file, by whatever name: as the process sees them, and as a power cut leaves them."""

    def __init__(self, initial: bytes = b"") -> None:
        self.seen = bytearray(initial)
        self.durable = bytearray(initial)
        self.pending: list[_Change] = []
        self.interrupted: _Change | None = None

    def change(self, change: _Change) -> None:
        change.apply(self.seen)
        self.pending.append(change)

    def interrupt(self, change: _Change) -> None:
        self.interrupted = change

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()

    def after(self, keep: Keep, random: Random) -> bytes:
        match keep:
            case Keep.NOTHING:
                return bytes(self.durable)
            case Keep.EVERYTHING:
                return bytes(self.seen)
            case Keep.TORN:
                return self._torn(random)

    def _torn(self, random: Random) -> bytes:
        """Each sector, and the length, as it was at a moment of its own.

        So between sectors any order of the changes can come out. Within one they keep their order: the kernel
        writes a sector as it is by then, and never an older state over a newer one.
        """
        changes = [*self.pending, *([self.interrupted] if self.interrupted else [])]
        image, now = bytearray(self.durable), bytearray(self.durable)
        lengths = [len(now)]
        states: dict[int, list[bytes]] = {}
        for change in changes:
            touched = change.sectors(len(now))
            for sector in touched:
                states.setdefault(sector, [_sector(now, sector)])
            change.apply(now)
            lengths.append(len(now))
            for sector in touched:
                states[sector].append(_sector(now, sector))
        # With a fixed share, a long row of sectors would never come out almost whole or almost untouched.
        newest_share = random.random()
        for sector, moments in states.items():
            start = sector * SECTOR_BYTES
            _Change(start, _choose(moments, random, newest_share)).apply(image)
        _Change(_choose(lengths, random, newest_share), None).apply(image)
        return bytes(image)


class _Name:
    """What a name in the directory stands for: a content, or nothing.

    `stood_for` begins with what a power cut can bring back at worst, and ends with what it stands for now.
    """

    def __init__(self, content: _Content | None) -> None:
        self.stood_for: list[_Content | None] = [content]
        self._interrupted: list[_Content | None] = []

    def interrupt(self, content: _Content | None) -> None:
        self._interrupted = [content]

    def sync(self, content: _Content) -> None:
        """The content was synced: it was created for good, though its deletion may still be under way."""
        if content in self.stood_for:
            del self.stood_for[: self.stood_for.index(content)]

    def after(self, keep: Keep, random: Random) -> _Content | None:
        match keep:
            case Keep.NOTHING:
                return self.stood_for[0]
            case Keep.EVERYTHING:
                return self.stood_for[-1]
            case Keep.TORN:
                return random.choice(self.stood_for + self._interrupted)


_T = TypeVar("_T")


def _choose(moments: list[_T], random: Random, newest_share: float) -> _T:
    return moments[-1] if random.random() < newest_share else random.choice(moments)


def _sector(image: bytearray, sector: int) -> bytes:
    start = sector * SECTOR_BYTES
    return bytes(image[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")


# The VFS. The two structures are SQLite's public ABI: https://sqlite.org/c3ref/vfs.html and io_methods.html.

_BASE_NAME: Final = "unix"
_JOURNALS: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_LASTING_FILES: Final = apsw.SQLITE_OPEN_MAIN_DB | _JOURNALS

# CFUNCTYPE lets go of the GIL while SQLite's own code runs, and takes it to run ours.
_Open = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_Delete = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_Write = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
_Close = ctypes.CFUNCTYPE(c_int, c_void_p)


class _Vfs(ctypes.Structure):
    """The beginning of a `sqlite3_vfs`."""

    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_void_p),
        ("pAppData", c_void_p),
        ("xOpen", c_void_p),
        ("xDelete", c_void_p),
    )


class _Methods(ctypes.Structure):
    """A `sqlite3_io_methods`."""

    _fields_ = (
        ("iVersion", c_int),
        ("xClose", c_void_p),
        ("xRead", c_void_p),
        ("xWrite", c_void_p),
        ("xTruncate", c_void_p),
        ("xSync", c_void_p),
        # From xFileSize to xUnfetch: native, and only copied.
        ("others", c_void_p * 13),
    )


class _BaseMethods:
    """The native methods of a kind of file, and the table that stands in for them."""

    def __init__(self, address: int) -> None:
        native = _Methods.from_address(address)
        self.address = address
        self.close: Callable[[int], int] = _Close(native.xClose)
        self.write: Callable[[int, int, int, int], int] = _Write(native.xWrite)
        self.truncate: Callable[[int, int], int] = _Truncate(native.xTruncate)
        self.stand_in = _Methods.from_buffer_copy(native)
        self.stand_in.xClose = _address(_x_close)
        self.stand_in.xWrite = _address(_x_write)
        self.stand_in.xTruncate = _address(_x_truncate)
        self.stand_in.xSync = _address(_x_sync)


@dataclass(kw_only=True, slots=True)
class _Handle:
    """An open file. It keeps its disk alive, and so the VFS that SQLite will close it with."""

    disk: Disk
    path: Path
    content: _Content
    base: _BaseMethods
    syncs_directory: bool
    """Whether the next sync is a journal's first, after which the `unix` VFS syncs the directory."""
    has_missed_failure: bool = False
    """Whether a sync of the same file by another handle has failed since this one last synced."""


def _address(function: Any) -> int | None:
    return ctypes.cast(function, c_void_p).value


def _vfs_address(name: str) -> int:
    """Where SQLite keeps the VFS of this name."""
    address = c_void_p()
    db = apsw.Connection(":memory:", vfs=name)
    db.file_control("main", apsw.SQLITE_FCNTL_VFS_POINTER, ctypes.addressof(address))
    db.close()
    if address.value is None:
        raise RuntimeError(f"SQLite does not say where its VFS {name} is")
    return address.value


# By the address of SQLite's structure: `sqlite3_vfs`, `sqlite3_file`, `sqlite3_io_methods`. These and the
# functions below belong to the module, since SQLite may use them as long as a connection is open.
_disks: WeakValueDictionary[int, Disk] = WeakValueDictionary()
_handles: dict[int, _Handle] = {}
_methods: dict[int, _BaseMethods] = {}


def _take_over(disk: Disk) -> None:
    """Put our `xOpen` and `xDelete` into the VFS that APSW has registered for the disk."""
    address = _vfs_address(disk.name)
    _disks[address] = disk
    vfs = _Vfs.from_address(address)
    vfs.szOsFile = _Vfs.from_address(_BASE_ADDRESS).szOsFile
    vfs.xOpen = _address(_x_open)
    vfs.xDelete = _address(_x_delete)


def _replace_methods(file: int) -> _BaseMethods:
    """Put our methods into an open `sqlite3_file`, whose first word points to its table of methods."""
    table = c_void_p.from_address(file)
    address = table.value or 0
    base = _methods.get(address) or _methods.setdefault(address, _BaseMethods(address))
    table.value = ctypes.addressof(base.stand_in)
    return base


def _called_by_sqlite(prototype: Callable[[Callable[..., int]], _T]) -> Callable[[Callable[..., int]], _T]:
    """Make a C function of a Python one."""

    def decorate(function: Callable[..., int]) -> _T:
        def call(*arguments: Any) -> int:
            # An exception from a Python function within a statement is still set while SQLite rolls it back,
            # and Python cannot run like that. APSW then raises SQLError with the same message.
            ctypes.pythonapi.PyErr_Clear()
            return function(*arguments)

        return prototype(call)

    return decorate


@_called_by_sqlite(_Open)
def _x_open(vfs: int, name: int | None, file: int, flags: int, flags_out: int | None) -> int:
    return _disks[vfs]._open(name, file, flags, flags_out)


@_called_by_sqlite(_Delete)
def _x_delete(vfs: int, name: int, sync_directory: int) -> int:
    return _disks[vfs]._delete(name, bool(sync_directory))


@_called_by_sqlite(_Write)
def _x_write(file: int, data: int, size: int, offset: int) -> int:
    handle = _handles[file]
    return handle.disk._write(handle, file, data, size, offset)


@_called_by_sqlite(_Truncate)
def _x_truncate(file: int, size: int) -> int:
    handle = _handles[file]
    return handle.disk._truncate(handle, file, size)


@_called_by_sqlite(_Sync)
def _x_sync(file: int, flags: int) -> int:
    handle = _handles[file]
    return handle.disk._sync(handle)


@_called_by_sqlite(_Close)
def _x_close(file: int) -> int:
    handle = _handles[file]
    return handle.disk._close(handle, file)


_BASE_ADDRESS: Final = _vfs_address(_BASE_NAME)
_base_open = _Open(_Vfs.from_address(_BASE_ADDRESS).xOpen)
_base_delete = _Delete(_Vfs.from_address(_BASE_ADDRESS).xDelete)


@atexit.register
def _let_go() -> None:
    """Let connections that are still open when the process ends close without Python, which goes first."""
    for file, handle in _handles.items():
        c_void_p.from_address(file).value = handle.base.address
    for address, disk in _disks.items():
        _Vfs.from_address(address).xDelete = _Vfs.from_address(_BASE_ADDRESS).xDelete
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(disk._vfs))  # never freed: SQLite still points to it
