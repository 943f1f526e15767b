"""Delta tables over Parquet files that Spark or pyarrow wrote: one commit adds files, removes files and carries a number.

The `deltalake` library writes the log and lets one writer win each version. What it does not check is checked here: that
a number is used once and only grows, that removed files are in the table, that added files exist and have new names, and
that a wider schema is told before the rows that need it.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)
from msgspec import Struct

from agentpost.pipeline.files import Files
from agentpost.protocol.errors import Code, Refusal

__all__ = ["Conflict", "TableFile", "commit", "described", "last_number", "live_files", "open_table"]

_APP: Final = "agentpost"
_CONFIGURATION: Final = {
    # A checkpoint every 20 commits keeps opening a table at some milliseconds, however long its log is.
    "delta.checkpointInterval": "20",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 30 days",
}
_LONGEST_STAT: Final = 64


class Conflict(Refusal):
    """Another writer committed first. What was planned is stale: plan anew, and never commit the old plan again."""

    def __init__(self, where: str, said: str) -> None:
        super().__init__(
            Code.CONFLICT,
            f"another pipeline wrote to {where}: {said}",
            hint="Run it again: what the other one took in is not taken in twice.",
        )


class TableFile(Struct, frozen=True, kw_only=True):
    """A file of a table. `path` is relative to the table; the hours are those of its first and last rows."""

    path: str
    size_bytes: int
    rows: int
    stats: str
    first_hour: int | None = None
    last_hour: int | None = None


def described(files: Files, table: str, directory: str) -> list[TableFile]:
    """The Parquet files below a directory of a table, with the statistics of their footers; empty ones are left out."""
    found: list[TableFile] = []
    for item in sorted(files.listing(f"{table}/{directory}")):
        if item.name.endswith(".parquet"):
            footer = pq.read_metadata(files.at(item.name), filesystem=files.system)
            if footer.num_rows:
                found.append(_described(item.name.removeprefix(f"{table}/"), item.size, footer))
    return found


def open_table(files: Files, table: str, *, version: int | None = None) -> DeltaTable | None:
    """A table as of a version, the latest if none is given; None if it was never written."""
    try:
        return DeltaTable(files.table_url(table), version=version, storage_options=files.storage_options)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as problem:
        raise _unreadable(files, table, problem) from None


def last_number(table: DeltaTable | None) -> int:
    """The number of the last commit; 0 before the first."""
    return 0 if table is None else table.transaction_version(_APP) or 0


def live_files(table: DeltaTable | None) -> dict[str, TableFile]:
    """The files of a table, by path."""
    if table is None:
        return {}
    actions = pa.table(cast("Any", table.get_add_actions(flatten=True))).to_pylist()
    return {action["path"]: _of_action(action) for action in cast("list[dict[str, Any]]", actions)}


def commit(
    files: Files,
    table: str,
    number: int,
    *,
    based_on: int | None,
    adds: Sequence[TableFile] = (),
    gone: Iterable[str] = (),
    schema: pa.Schema,
    told: Mapping[str, str] | None = None,
    is_next: bool = False,
) -> int:
    """Commit what version `based_on` becomes when files are added and others removed. Gives the new version.

    Where an attempt that came to nothing left commits after `based_on`, this one takes them back; with `is_next` there
    must be none. `told` is kept with the commit. Raises `Conflict` if another writer was first.
    """
    latest = open_table(files, table)
    if is_next and (None if latest is None else latest.version()) != based_on:
        raise Conflict(files.where, f"{table} was changed meanwhile")
    base = None if based_on is None or latest is None else open_table(files, table, version=based_on)
    if last_number(latest) >= number:
        raise Conflict(files.where, f"{table} has commit {last_number(latest)}, this one is {number}")
    before, now = live_files(base), live_files(latest)
    _expect_sound(files, table, adds, set(gone), before, now)
    wanted = {path: file for path, file in before.items() if path not in set(gone)} | {file.path: file for file in adds}
    properties = CommitProperties(
        custom_metadata=dict(told or {}), app_transactions=[Transaction(_APP, number)], max_commit_retries=0
    )
    actions = [_add(file) for path, file in sorted(wanted.items()) if path not in now]
    try:
        if latest is None:
            version = _create(files, table, schema, actions, properties)
        else:
            latest = _widened(files, table, latest, schema)
            gone_actions = [_remove(file) for path, file in sorted(now.items()) if path not in wanted]
            latest.create_write_transaction(
                cast("Any", [*actions, *gone_actions]), "append", latest.schema(), commit_properties=properties
            )
            version = latest.version() + 1
    except CommitFailedError as problem:
        raise Conflict(files.where, str(problem)) from None
    files.sync([f"{table}/_delta_log/{version:020d}.json"])
    return version


def _create(files: Files, table: str, schema: pa.Schema, actions: list[AddAction], properties: CommitProperties) -> int:
    if files.is_local:
        files.make_directory(table)
    try:
        create_table_with_add_actions(
            files.table_url(table),
            _delta_schema(schema),
            actions,
            mode="error",
            configuration=_CONFIGURATION,
            storage_options=files.storage_options,
            commit_properties=properties,
        )
    except DeltaError as problem:
        if open_table(files, table) is not None:
            raise Conflict(files.where, f"{table} was made meanwhile") from None
        raise _unreadable(files, table, problem) from None
    return 0


def _expect_sound(
    files: Files,
    table: str,
    adds: Sequence[TableFile],
    gone: set[str],
    before: Mapping[str, TableFile],
    now: Mapping[str, TableFile],
) -> None:
    """Refuse what the library would take: unknown removes, names that repeat, files that are not there."""
    names = [file.path for file in adds]
    wrong = sorted(gone - before.keys()) or sorted(name for name in names if name in before or name in now)
    if not wrong and len(set(names)) < len(names):
        wrong = names
    missing = [name for name in names if not files.exists(f"{table}/{name}")]
    if wrong or missing:
        raise Refusal(
            Code.INTERNAL,
            f"a commit to {table} names {(wrong or missing)[0]!r}, which is {'wrong' if wrong else 'missing'}",
            hint="Nothing was changed. Run it again; if it stays, this is a defect of agentpost.",
        )


def _widened(files: Files, table: str, latest: DeltaTable, schema: pa.Schema) -> DeltaTable:
    """The table with every column of the schema: a column that a commit merely brings along would be lost."""
    known = {field.name for field in latest.schema().fields}
    new = [field for field in _delta_schema(schema).fields if field.name not in known]
    if not new:
        return latest
    latest.alter.add_columns(cast("list[Field]", new))
    return DeltaTable(files.table_url(table), storage_options=files.storage_options)


def _delta_schema(schema: pa.Schema) -> Schema:
    """Every column may be null: what one version promises, the files of the next need not keep."""
    loose = pa.schema([pa.field(field.name, _loose(field.type)) for field in schema])
    return Schema.from_arrow(cast("Any", loose))


def _loose(kind: Any) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _loose(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _loose(field.type)) for field in cast("Any", kind)])
    return kind


def _add(file: TableFile) -> AddAction:
    return AddAction(file.path, file.size_bytes, {}, int(time.time() * 1000), True, file.stats)


def _remove(file: TableFile) -> Any:
    return RemoveAction(file.path, True, int(time.time() * 1000), size=file.size_bytes, partition_values={})


def _described(path: str, size_bytes: int, footer: pq.FileMetaData) -> TableFile:
    """Statistics of the plain columns, from the footer of the file."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            column = footer.row_group(group).column(place)
            name, found = column.path_in_schema, column.statistics
            if "." in name or found is None:
                continue
            if found.has_null_count:
                nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max and _is_told(found.min) and _is_told(found.max):
                least[name] = min(least.get(name, found.min), found.min)
                most[name] = max(most.get(name, found.max), found.max)
            elif not found.has_null_count or found.null_count < column.num_values:
                # Values that one row group does not tell of may lie outside of what the others tell.
                unknown.add(name)
    stats = {
        "numRecords": footer.num_rows,
        "minValues": {name: value for name, value in least.items() if name not in unknown},
        "maxValues": {name: value for name, value in most.items() if name not in unknown},
        "nullCount": nulls,
    }
    return TableFile(
        path=path,
        size_bytes=size_bytes,
        rows=footer.num_rows,
        stats=json.dumps(stats),
        first_hour=least.get("hour"),
        last_hour=most.get("hour"),
    )


def _is_told(value: Any) -> bool:
    return isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= _LONGEST_STAT)


def _of_action(action: dict[str, Any]) -> TableFile:
    def told(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in action.items() if name.startswith(prefix)}

    rows = action.get("num_records") or 0
    stats = {
        "numRecords": rows,
        "minValues": {name: value for name, value in told("min.").items() if value is not None},
        "maxValues": {name: value for name, value in told("max.").items() if value is not None},
        "nullCount": {name: value for name, value in told("null_count.").items() if value is not None},
    }
    return TableFile(
        path=action["path"],
        size_bytes=action["size_bytes"],
        rows=rows,
        stats=json.dumps(stats),
        first_hour=action.get("min.hour"),
        last_hour=action.get("max.hour"),
    )


def _unreadable(files: Files, table: str, problem: BaseException) -> Refusal:
    return Refusal(
        Code.STORAGE_CORRUPT,
        f"the table {table} at {files.where} cannot be read: {str(problem).partition(chr(10))[0][:200]}",
        hint="Run `agentpost pipeline run --full`: the lake has everything.",
    )
