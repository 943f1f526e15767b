"""The tasks are a projection: made anew from their events they are the same, and what was altered is found."""

from pathlib import Path

import apsw
import pytest

from agentpost.store.home import Home
from agentpost.store.sqlite import SqliteStore
from agentpost.work.offering import NewTask
from tests.work.meshing import Mesh


async def some_tasks(mesh: Mesh) -> None:
    a, b = await mesh.add("node-a", "node-b")
    await a.host("ada")
    await b.host("bob")
    for number in range(5):
        offered = await a.tasks.create(NewTask(requester_agent_id="ada", title=f"Task {number}", to_agents=("bob",)))
        await mesh.rest()
        await b.tasks.claim(offered.task_id, "bob", eta_seconds=60)
        await b.tasks.complete(offered.task_id, "bob", result_summary="done")
        await mesh.rest()


@pytest.mark.req("TASK-5")
async def test_an_altered_task_is_found_and_put_right(tmp_path: Path) -> None:
    """A row of the view that was changed by hand differs; a check tells, a rebuild puts it right."""
    mesh = Mesh(tmp_path)
    await some_tasks(mesh)
    before = mesh.nodes["node-a"].store.tasks()
    await mesh.close()
    connection = apsw.Connection(str(Home(tmp_path / "node-a").database))
    connection.execute("UPDATE tasks SET state = 'failed' WHERE task_id = ?", (before[1].task_id,))
    connection.execute("DELETE FROM tasks WHERE task_id = ?", (before[2].task_id,))
    connection.close()
    store = SqliteStore.open(tmp_path / "node-a", node_id="node-a", epoch="x", now_ms=0)
    try:
        checked = await store.rebuild_tasks(check_only=True)
        assert set(checked.differing) == {before[1].task_id, before[2].task_id}
        assert (await store.rebuild_tasks()).differing == checked.differing
        assert store.tasks() == before
        assert (await store.rebuild_tasks(check_only=True)).differing == ()
    finally:
        await store.close()


@pytest.mark.req("TASK-5", "OBS-11")
async def test_tasks_come_back_from_outbox_and_inbox_alone(tmp_path: Path) -> None:
    """A home that was restored has outbox and inbox: the tasks are made of these."""
    mesh = Mesh(tmp_path)
    await some_tasks(mesh)
    before = {name: node.store.tasks() for name, node in mesh.nodes.items()}
    await mesh.close()
    for name in before:
        connection = apsw.Connection(str(Home(tmp_path / name).database))
        connection.execute("DELETE FROM tasks; DELETE FROM task_events")
        connection.close()
        store = SqliteStore.open(tmp_path / name, node_id=name, epoch="x", now_ms=0)
        try:
            rebuilt = await store.rebuild_tasks()
            assert rebuilt.tasks == 5
            assert rebuilt.recovered_events > 0
            assert [(task.task_id, task.state) for task in store.tasks()] == [
                (task.task_id, task.state) for task in before[name]
            ]
        finally:
            await store.close()
