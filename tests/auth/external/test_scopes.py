"""Scopes and lifetimes: what may be granted, what an operation needs, and for how long."""

import pytest

from agentpost.auth.external.lifetimes import Lifetimes
from agentpost.auth.external.scopes import OPERATION_SCOPES, SCOPES, check_scopes, require_scope
from agentpost.edges.operations import OPERATIONS
from agentpost.edges.operations.mesh import MESH
from agentpost.protocol.errors import Code
from tests.store.building import refused


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("operation", list(OPERATION_SCOPES))
def test_an_operation_needs_its_own_scope(operation: str) -> None:
    """With all others it is denied, with that one alone it is not."""
    for needed in OPERATION_SCOPES[operation]:
        assert require_scope(operation, [needed]) == needed
    with refused(Code.SCOPE_DENIED):
        require_scope(operation, [scope for scope in SCOPES if scope not in OPERATION_SCOPES[operation]])


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
    assert {scope for needed in OPERATION_SCOPES.values() for scope in needed} == set(SCOPES)


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
