"""Scopes and lifetimes: what may be granted, what an operation needs, and for how long."""

import pytest

from agentpost.auth.external.lifetimes import Lifetimes
from agentpost.auth.external.scopes import (
    A2A_SCOPES,
    OPERATION_SCOPES,
    SCOPES,
    check_scopes,
    operations_of,
    require_scope,
)
from agentpost.edges.operations import OPERATIONS
from agentpost.edges.operations.mesh import MESH
from agentpost.protocol.errors import Code
from tests.auth.external.granting import A2A_METHODS, GRANTED, OPENED_BY
from tests.store.building import refused


def test_there_is_nothing_to_grant_or_to_call_besides_the_table() -> None:
    """The scopes and the operations are those of docs/external-agents.md and docs/a2a.md, each once."""
    assert sorted(SCOPES) == sorted(GRANTED)
    assert sorted(OPERATION_SCOPES) == sorted(OPENED_BY)
    assert sorted(A2A_SCOPES) == sorted([*(f"a2a.{method}" for method in A2A_METHODS), "a2a.Unknown"])


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("scope", GRANTED)
@pytest.mark.parametrize("operation", OPENED_BY)
def test_a_scope_opens_its_operations_and_no_other(operation: str, scope: str) -> None:
    """Each scope alone, and all others without it, against each operation of the table."""
    others = [each for each in GRANTED if each != scope]
    if OPENED_BY[operation] == scope:
        assert require_scope(operation, [scope]) == scope
        with refused(Code.SCOPE_DENIED) as caught:
            require_scope(operation, others)
        assert scope in caught.value.message
    else:
        with refused(Code.SCOPE_DENIED):
            require_scope(operation, [scope])
        assert require_scope(operation, others) == OPENED_BY[operation]


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("scope", GRANTED)
def test_a_session_lists_the_operations_that_its_scope_opens(scope: str) -> None:
    """What a session is told that it may call is what it may call."""
    assert sorted(operations_of([scope])) == sorted(name for name, needed in OPENED_BY.items() if needed == scope)


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("scope", GRANTED)
@pytest.mark.parametrize("method", A2A_METHODS)
def test_a_scope_opens_its_methods_of_a2a_and_no_other(method: str, scope: str) -> None:
    """`task.create` opens what asks for work, `task.read` what shows it, and nothing else opens anything."""
    if A2A_METHODS[method] == scope:
        assert require_scope(f"a2a.{method}", [scope]) == scope
    else:
        with refused(Code.SCOPE_DENIED):
            require_scope(f"a2a.{method}", [scope])


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("operation", ["", "ansible_resend", "ansible_set_coordination", "Ansible_Status", "x"])
def test_an_operation_that_nobody_knows_is_denied(operation: str) -> None:
    """Even with every scope that there is."""
    with refused(Code.SCOPE_DENIED):
        require_scope(operation, SCOPES)


def test_what_is_served_has_a_scope() -> None:
    """No operation can be called without one, no scope opens what is not there, and each scope opens something."""
    assert OPERATIONS.keys() - OPERATION_SCOPES.keys() == MESH.keys()
    assert OPERATION_SCOPES.keys() <= OPERATIONS.keys()


@pytest.mark.req("EXT-5", "EXT-6")
def test_scopes_are_a_subset_in_order() -> None:
    """Each once, in the order of the list; one beyond what may be granted denies all."""
    assert check_scopes(["ansible.status.read", "ansible.message.read", "ansible.status.read"]) == (
        "ansible.message.read",
        "ansible.status.read",
    )
    for beyond in ("ansible.admin.all", "ansible.message", "ansible.message.read ansible.message.send", ""):
        with refused(Code.SCOPE_DENIED):
            check_scopes(["ansible.message.read", beyond])
    with refused(Code.SCOPE_DENIED):
        check_scopes(["ansible.message.send"], within=["ansible.message.read"])
    with refused(Code.INVALID_FIELD):
        check_scopes([])


@pytest.mark.req("EXT-2")
@pytest.mark.parametrize(
    "settings",
    [
        {"access_seconds": 299},
        {"access_seconds": 901},
        {"refresh_seconds": 86_399},
        {"refresh_seconds": 7 * 86_400 + 1},
        {"refresh_grace_seconds": 61},
    ],
    ids=str,
)
def test_lifetimes_stay_within_their_bounds(settings: dict[str, int]) -> None:
    """Minutes for access, days for refreshing."""
    with refused(Code.INVALID_FIELD):
        Lifetimes(**settings)
