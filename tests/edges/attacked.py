"""A mesh under attack: a gateway that is lied to, an honest third one, and everything that must not have happened."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from agentpost.store.database import Database
from agentpost.store.home import Home
from agentpost.store.queries import SQL
from tests.edges.lying import Liar
from tests.edges.mailing import Machine
from tests.edges.meshing import eventually, invite
from tests.edges.running import NO_LIMITS

# What a gateway may take for what an attacker does: buffers that are bounded, and the allocator's leavings.
MOST_GROWTH_BYTES = 96 * 1024 * 1024


class AttackedMesh:
    """`victim` has the agent `builder`, who counts; `third` has `architect`, whose mail must go on whatever happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.victim = Machine(folder, "vps-jane", "backbone", *NO_LIMITS)
        self.third = Machine(folder, "mbp-jane", "edge", *NO_LIMITS)
        self.honest: list[str] = []
        self.liars: list[Liar] = []
        self._numbers = itertools.count(1)
        self._audited = 0
        self._incidents = 0
        self._memory = 0

    def start(self) -> None:
        self.victim.start()
        self.third.start()
        token = invite(self.victim.gateway, self.third.node)
        self.third.post("/operator/join", {"url": self.victim.gateway.url, "token": token})
        self.third.add_agent("architect")
        self.victim.add_counting_agent("builder")
        self.victim.add_agent("clerk")
        eventually(lambda: self.third.knows("builder") and self.victim.knows("architect"))
        self.send_honestly()
        self._memory = self.memory()

    def stop(self) -> None:
        self.victim.stop()
        self.third.stop()

    def liar(self, tier: str = "edge") -> Liar:
        """Another member. Each lie has its own: who has lied once is not asked again for a while."""
        liar = Liar(f"mallory-{next(self._numbers)}", self.folder, self.victim.gateway, tier=tier)
        self.liars.append(liar)
        return liar

    def send_honestly(self) -> str:
        """Mail of the third gateway for the victim's agent; returns once it was dealt with."""
        event_id: str = self.third.send("builder", "honest", sender="architect")["eventId"]
        self.honest.append(event_id)
        eventually(lambda: self.third.states(event_id)[0] in ("Processed", "Replied"))
        return event_id

    def memory(self) -> int:
        """What the victim's process has in memory, in bytes."""
        for line in Path(f"/proc/{self.victim.gateway.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the victim is not there any more")

    def audited(self, liar: Liar) -> list[dict[str, Any]]:
        """What the victim's audit log has of a liar."""
        database = Database.open_reader(Home(self.victim.home).database)
        try:
            rows = database.rows(SQL.audit_log, (0, 100_000))
            return [{"action": row[3], "detail": row[7]} for row in rows if row[2] == liar.node_id]
        finally:
            database.close()

    def incidents(self, subject: str) -> list[str]:
        found = self.victim.get("/ansible/incidents?limit=500&only_open=false")
        return [each["kind"] for each in found if each["subject"] == subject]

    def expect_incident(self, liar: Liar, kind: str) -> None:
        """A ping is answered before the disk has what came before it."""
        eventually(lambda: kind in self.incidents(liar.node_id))

    def expect_audited(self, liar: Liar, code: str) -> None:
        eventually(lambda: any(f'"{code}"' in each["detail"] for each in self.audited(liar)))

    def expect_unharmed(self) -> None:
        """Healthy, no larger than before, honest mail goes on, and no agent had anything of a lie."""
        self.send_honestly()
        assert self.victim.counted() == self.honest, "an agent had something that no honest agent sent, or not all"
        assert self.victim.get("/ansible/agents/clerk/inbox") == []
        assert self.third.get("/ansible/agents/architect/inbox?unread=true&limit=500") is not None
        assert httpx.get(f"{self.victim.gateway.url}/health/ready").status_code == 200
        assert self.memory() - self._memory < MOST_GROWTH_BYTES
        log = self.victim.gateway.log
        assert "Traceback" not in log
        assert not any(secret in log for liar in self.liars for secret in liar.secrets)


@contextmanager
def attacked_mesh(folder: Path) -> Iterator[AttackedMesh]:
    mesh = AttackedMesh(folder)
    try:
        mesh.start()
        yield mesh
    finally:
        mesh.stop()
