"""The rules of docs/pipeline.md once more, in plain Python, event by event: what the truth of a fleet is held against.

Shares no code with the simulator or the pipeline. For small lakes only.
"""

import json
from collections import defaultdict
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentpost.auth.signing import signed_by
from agentpost.lake.manifest import MANIFEST_PURPOSE, SegmentManifest, signed_bytes
from agentpost.lake.schema import SEGMENT
from agentpost.protocol.ids import ulid_time_ms

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
YEAR = 365 * DAY
OUTCOMES = ("processed", "failed_terminal")

Finding = tuple[tuple[str, Any], ...]


def finding(rule: str, event: dict[str, Any], *, about: str | None = None, agent: str | None = None) -> Finding:
    found = {"rule": rule, "node": event["node"], "epoch": event["epoch"], "seq": event["seq"]}
    if about is not None:
        found["eventId"] = about
    if agent is not None:
        found["agentId"] = agent
    return tuple(sorted(found.items()))


def truth_of(lake: Path) -> set[Finding]:
    faults = json.loads((lake / "truth.json").read_text())["faults"]
    found = [tuple(sorted(fault.items())) for fault in faults]
    assert len(found) == len(set(found))
    return set(found)


class PlainCheck:
    def __init__(self, lake: Path, *, now_us: int) -> None:
        self.now_us = now_us
        self.found: set[Finding] = set()
        self.keys = signing_keys(lake)
        self.outboxes: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        self.claimed: dict[tuple[str, str], set[int]] = defaultdict(set)
        for path in sorted(lake.glob("manifests/*/*/*.json")):
            self.read_segment(lake, msgspec.json.decode(path.read_bytes(), type=SegmentManifest))
        self.look_at_places()
        self.look_at_deliveries()
        self.look_at_tasks()

    def report(self, rule: str, event: dict[str, Any], **more: str | None) -> None:
        self.found.add(finding(rule, event, **more))

    def read_segment(self, lake: Path, manifest: SegmentManifest) -> None:
        outbox = (manifest.node_id, manifest.epoch)
        at_first = {"node": outbox[0], "epoch": outbox[1], "seq": manifest.first_seq}
        self.claimed[outbox] |= set(range(manifest.first_seq, manifest.last_seq + 1))
        if not signed_by(
            self.keys[manifest.sealed_by],
            MANIFEST_PURPOSE,
            signed_bytes(manifest).partition(b"\n")[2],
            manifest.signature,
        ):
            self.report("bad_signature", at_first)
            return
        path = lake / manifest.path
        content = path.read_bytes() if path.exists() else b""
        if len(content) != manifest.size_bytes or sha256(content).hexdigest() != manifest.sha256:
            self.report("bad_segment", at_first)
            return
        table = pq.read_table(pa.BufferReader(content))
        if not table.schema.equals(SEGMENT):
            self.report("bad_segment", at_first)
            return
        rows = [row | {"node": outbox[0], "epoch": outbox[1]} for row in table.to_pylist()]
        assert [row["seq"] for row in rows] == list(range(manifest.first_seq, manifest.last_seq + 1))
        chain = bytes.fromhex(manifest.start_chain)
        for row in rows:
            chain = sha256(chain + row["body"]).digest()
            if chain != row["chain"]:
                self.report("chain_break", row)
                return
        assert chain.hex() == manifest.end_chain
        for row in rows:
            self.read_row(outbox, row, manifest)

    def read_row(self, outbox: tuple[str, str], row: dict[str, Any], manifest: SegmentManifest) -> None:
        standing = self.outboxes[outbox].setdefault(row["seq"], row)
        if standing["chain"] != row["chain"]:
            places = self.outboxes[outbox]
            before = places.get(row["seq"] - 1)
            # Only the first seq of a fork counts: all after it differ as well.
            if before is None or "forked" not in before:
                self.report("fork", row)
            standing["forked"] = True
            return
        if row["source_node"] != outbox[0]:
            self.report("foreign_source", row, about=row["event_id"])
        made_us = ulid_time_ms(row["event_id"]) * 1000
        if row["created_us"] > manifest.sealed_at_us + DAY or abs(row["created_us"] - made_us) >= YEAR:
            self.report("clock_off", row, about=row["event_id"])

    def look_at_places(self) -> None:
        epochs: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for (node, epoch), seqs in self.claimed.items():
            place = {"node": node, "epoch": epoch}
            for seq in range(min(seqs), max(seqs)):
                if seq not in seqs and seq - 1 in seqs:
                    self.report("gap", place | {"seq": seq})
            made = [ulid_time_ms(row["event_id"]) for row in self.outboxes[node, epoch].values()]
            epochs[node].append((min(made), epoch))
        for node, known in epochs.items():
            known.sort()
            for (_, before), (_, after) in pairwise(known):
                first = min(self.claimed[node, after])
                if first <= max(self.claimed[node, before]):
                    self.report("regression", {"node": node, "epoch": after, "seq": first})

    def events(self) -> list[dict[str, Any]]:
        return [row for _, rows in sorted(self.outboxes.items()) for _, row in sorted(rows.items())]

    def look_at_deliveries(self) -> None:
        sends: dict[str, list[dict[str, Any]]] = defaultdict(list)
        said: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        wrote: dict[str, list[int]] = defaultdict(list)
        for event in self.events():
            wrote[event["node"]].append(event["created_us"])
            if event["to_agents"]:
                sends[event["event_id"]].append(event)
            if event["kind"] == "ack":
                said[event["ref_event_id"], event["acked_by_agent"]].append(event)
            elif event["kind"] == "reply":
                said[event["ref_event_id"], event["source_agent"]].append(event)
            elif event["kind"] == "dead_letter":
                said[event["ref_event_id"], event["dead_for_agent"]].append(event)
        for places in sends.values():
            by_attempt: dict[int, list[dict[str, Any]]] = defaultdict(list)
            for place in places:
                by_attempt[place["attempt"]].append(place)
            for same in by_attempt.values():
                if len(same) > 1:
                    self.report("duplicate", max(same, key=lambda e: e["seq"]), about=same[0]["event_id"])
        for key, words in said.items():
            asked = [node for send in sends.get(key[0], []) for node in nodes_for(send, key[1])]
            heard = [word for word in words if word["kind"] != "dead_letter"]
            if heard and not asked:
                self.report("orphan_ack", heard[0], about=key[0], agent=key[1])
            elif heard:
                strangers = [word for word in heard if word["node"] not in asked]
                if strangers:
                    self.report("wrong_acker", strangers[0], about=key[0], agent=key[1])
        for event_id, places in sends.items():
            for agent in places[0]["to_agents"]:
                self.look_at_delivery(event_id, agent, places, said[event_id, agent], wrote)

    def look_at_delivery(
        self,
        event_id: str,
        agent: str,
        places: list[dict[str, Any]],
        said: list[dict[str, Any]],
        wrote: dict[str, list[int]],
    ) -> None:
        first = min(places, key=lambda e: e["seq"])
        (node,) = nodes_for(first, agent)
        dead = [word for word in said if word["kind"] == "dead_letter"]
        heard = [word for word in said if word["kind"] != "dead_letter" and word["node"] == node]
        accepts = [word for word in heard if word["ack_type"] == "accepted"]
        outcomes = [word for word in heard if word["ack_type"] in OUTCOMES or word["kind"] == "reply"]
        about = {"about": event_id, "agent": agent}
        for word in dead:
            self.report("expired" if word["reason"] == "expired" else "dead_letter", word, **about)
        if len(accepts) > 1:
            self.report("double_injection", first, **about)
        for word in accepts:
            if word["created_us"] < first["created_us"] - 60 * SECOND:
                self.report("accept_before_emit", word, **about)
        if outcomes and not any(accept["seq"] < outcomes[0]["seq"] for accept in accepts):
            self.report("unaccepted_outcome", outcomes[0], **about)
        if not heard and not dead:
            after = [at for at in wrote[node] if at > first["created_us"]]
            if after and max(after) > first["created_us"] + HOUR:
                self.report("black_hole", first, **about)
        if accepts:
            due_us = accepts[0]["created_us"] + DAY + 120 * SECOND
            done_us = min((word["created_us"] for word in outcomes), default=None)
            if (done_us or self.now_us) > due_us:
                self.report("sla_breach", first, **about)

    def look_at_tasks(self) -> None:
        tasks: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in self.events():
            if event["task_id"] is not None:
                tasks[event["task_id"]].append(event)
        for events in tasks.values():
            (created,) = [event for event in events if event["kind"] == "task_create"]
            etas = sorted((event["created_us"], event["eta_us"]) for event in events if event["eta_us"])
            ends = [event for event in events if event["kind"] in ("task_complete", "task_failed")]
            ended_us = ends[0]["ended_us"] if ends else self.now_us
            if etas and ended_us > etas[-1][1] + 120 * SECOND:
                self.report("eta_missed", created)
            for event in ends:
                if event["kind"] == "task_failed":
                    self.report("task_failed", event)


def nodes_for(send: dict[str, Any], agent: str) -> list[str]:
    return [node for name, node in zip(send["to_agents"], send["to_nodes"], strict=True) if name == agent]


def signing_keys(lake: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(lake.glob("facts/*/*.parquet")):
        for fact in pq.read_table(path, partitioning=None).to_pylist():
            if fact["topic"] == "node":
                found[fact["key"]] = json.loads(fact["value"])["signingPublic"]
    return found
