"""The lifecycle and the latencies once more, in plain Python, event by event. Shares no code with the pipeline."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

SECOND = 1_000_000
SLA_US = 86_400 * SECOND
GRACE_US = 120 * SECOND
ACK_TIMEOUT_US = 20 * SECOND

Row = dict[str, Any]
Key = tuple[str, str]


class Delivery:
    """What was said of one delivery, in the order of the outboxes."""

    def __init__(self) -> None:
        self.sends: list[Row] = []
        self.said: list[Row] = []
        self.dead: list[Row] = []

    def state(self, agent: str, now_us: int) -> str:
        asked = {
            node
            for send in self.sends
            for name, node in zip(send["to_agents"], send["to_nodes"], strict=True)
            if name == agent
        }
        heard = [word for word in self.said if word["node"] in asked and word["acked_by_node"] in (None, word["node"])]
        accepts = [word for word in heard if word["ack_type"] == "accepted"]
        ends = sorted((word for word in heard if word["ack_type"] != "accepted"), key=lambda word: word["seq"])
        if self.dead:
            return "DeadLetter"
        due_us = min((self.due_us(word) for word in accepts), default=None)
        ended_us = min((word["acked_us"] or word["created_us"] for word in ends), default=None)
        if due_us is not None and (ended_us or now_us) > due_us:
            return "Incident"
        if ends:
            return "Replied" if ends[0]["kind"] == "reply" else "Processed"
        if accepts:
            return "Accepted"
        sent_us = min(send["created_us"] for send in self.sends)
        return "RetryPending" if sent_us + ACK_TIMEOUT_US < now_us else "Emitted"

    def due_us(self, accept: Row) -> int:
        deadlines = [
            send["deadline_us"] for send in self.sends if send["deadline_us"] and send["kind"] == "task_create"
        ]
        promised = accept["eta_us"] or (deadlines[0] if deadlines else accept["acked_us"] + SLA_US)
        return max(promised, accept["acked_us"]) + GRACE_US


def nodes_for(send: Row, agent: str) -> list[str]:
    return [node for name, node in zip(send["to_agents"], send["to_nodes"], strict=True) if name == agent]


def deliveries(events: Iterable[Row]) -> dict[Key, Delivery]:
    """Every delivery that was sent."""
    found: dict[Key, Delivery] = defaultdict(Delivery)
    for event in events:
        for agent in event["to_agents"]:
            found[event["event_id"], agent].sends.append(event)
        ref = event["ref_event_id"]
        if event["kind"] == "ack":
            found[ref, event["acked_by_agent"]].said.append(event)
        elif event["kind"] == "reply":
            found[ref, event["source_agent"]].said.append(event)
        elif event["kind"] == "dead_letter":
            found[ref, event["dead_for_agent"]].dead.append(event)
    return {key: delivery for key, delivery in found.items() if delivery.sends}


def latencies(found: dict[Key, Delivery]) -> dict[tuple[int, str, str, str], tuple[float, float, float]]:
    """p50, p95 and p99 in ms from first send to first accept, by hour, kind, sender's and recipient's node."""
    took: dict[tuple[int, str, str, str], list[float]] = defaultdict(list)
    for (_, agent), delivery in found.items():
        accepted = [
            word["acked_us"]
            for word in delivery.said
            if word["ack_type"] == "accepted" and word["acked_by_node"] == word["node"]
        ]
        first = delivery.sends[0]
        to = first["to_nodes"][first["to_agents"].index(agent)]
        if accepted:
            sent_us = min(send["created_us"] for send in delivery.sends)
            took[first["event_hour"], first["kind"], first["node"], to].append((min(accepted) - sent_us) / 1000)
    return {
        key: (float(np.percentile(values, 50)), float(np.percentile(values, 95)), float(np.percentile(values, 99)))
        for key, values in took.items()
    }
