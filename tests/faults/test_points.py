"""The list of cut points is complete: what the source commits and sends is held against it."""

import ast
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path

import agentpost
from agentpost.delivery import frames
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from tests.faults.points import COMMIT_CALLS, COMMITS, COMMITS_ELSEWHERE, FRAMES, FRAMES_ELSEWHERE, SEND_CALLS

SOURCE = Path(agentpost.__file__).parent
# Ends the store, and commits nothing that was not committed before.
NO_COMMIT = {"close"}


def test_every_operation_of_the_store_that_writes_is_named() -> None:
    """An operation that is answered later is one that commits; each is a cut point, or says where else it is cut."""
    writing = {
        name
        for name, method in inspect.getmembers(Store, inspect.isfunction)
        if str(typing.get_type_hints(method).get("return", "")).startswith("collections.abc.Awaitable")
    }
    assert writing - NO_COMMIT == COMMITS | COMMITS_ELSEWHERE.keys()
    assert not COMMITS & COMMITS_ELSEWHERE.keys()


def test_the_store_writes_only_through_named_operations() -> None:
    """Whatever hands work to the writer thread is an operation of the interface."""
    tree = ast.parse(inspect.getsource(SqliteStore))
    handing = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and _called(call) in ("submit", "append") and _is_of_writer(call)
    }
    assert handing, "the writer is not handed anything: this test looks in the wrong place"
    assert handing <= COMMITS | COMMITS_ELSEWHERE.keys() | NO_COMMIT | _helpers(tree)


def test_every_frame_is_named() -> None:
    """Each kind of frame that a link can carry is a cut point, or says where else it is cut."""
    tags = {kind.__struct_config__.tag for kind in typing.get_args(frames.Frame)}
    assert tags == FRAMES | FRAMES_ELSEWHERE.keys()
    assert not FRAMES & FRAMES_ELSEWHERE.keys()


def test_transactions_are_committed_where_the_list_says() -> None:
    """A commit in a new place fails here, until it is named and cut."""
    found = {
        (where, function)
        for path in sorted(SOURCE.rglob("*.py"))
        for where, function, call in _calls(path)
        # A bench keeps nothing for anybody.
        if not where.startswith("bench/")
        if _called(call) == "commit" and not call.args
    }
    assert found == COMMIT_CALLS


def test_frames_leave_the_gateway_where_the_list_says() -> None:
    """A send in a new place fails here, until it is named and cut."""
    found = {
        (where, function)
        for path in sorted((SOURCE / "edges" / "link").glob("*.py"))
        for where, function, call in _calls(path)
        if _called(call) in ("send", "writelines")
    }
    assert found == SEND_CALLS


def _calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Each call in a file, with the innermost function that it stands in."""
    where = path.relative_to(SOURCE).as_posix()

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, str, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield where, function, child
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, child.name if is_function else function)

    yield from walk(ast.parse(path.read_text()), "")


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_of_writer(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and "_writer" in ast.unparse(call.func.value)


def _helpers(tree: ast.AST) -> set[str]:
    """Private methods: what they hand in is handed in by the operations that call them."""
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("_")}
