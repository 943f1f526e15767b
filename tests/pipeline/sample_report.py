"""A report with something in every section, made of nothing: for the tests of what shows it."""

import math

from agentpost.pipeline.report.model import (
    Backlog,
    Capability,
    Finding,
    Freshness,
    HourLatency,
    HourRates,
    HourThroughput,
    Latency,
    NodeSpeed,
    Objective,
    PairLatency,
    Report,
    Review,
    RuleCount,
    Tasks,
    Tile,
)

FIRST_HOUR = 492_250
HOURS = 72
NOW_US = (FIRST_HOUR + HOURS) * 3_600_000_000
KINDS = {"message": 90_000, "reply": 70_000, "task_create": 140_000, "task_complete": 110_000}


def sample_report() -> Report:
    hours = range(FIRST_HOUR, FIRST_HOUR + HOURS)
    wave = {hour: 1 + 0.6 * math.sin((hour % 24 - 9) / 24 * 2 * math.pi) for hour in hours}
    latency = tuple(
        HourLatency(
            kind=kind,
            hour=hour,
            count=round(900 * wave[hour]),
            p50_us=round(usual * wave[hour]),
            p95_us=round(9 * usual * wave[hour] ** 2),
            p99_us=round(40 * usual * wave[hour] ** 3),
        )
        for kind, usual in KINDS.items()
        for hour in hours
        if not (kind == "reply" and hour % 24 == 3)  # an hour with nothing in it
    )
    nodes = [f"node-{n:04d}" for n in range(14)]
    return Report(
        lake="/srv/agentpost/lake",
        version=42,
        now_us=NOW_US,
        newest_us=NOW_US - 4_000_000,
        events=5_012_345,
        tiles=(
            Tile(label="Events", value="5.0 M", note="in 20 outboxes"),
            Tile(label="Delivered", value="99.93 %", note="of 1.3 M deliveries", verdict="good"),
            Tile(label="Delivery p95", value="1.2 s", note="objective: under 5 s", verdict="good"),
            Tile(label="Open", value="212", note="oldest 4 min"),
            Tile(label="Backlog alerts", value="1", note="node-0003", verdict="warning"),
            Tile(label="Dead letters", value="1,002", note="0.08 % of deliveries", verdict="warning"),
            Tile(label="Broken rules", value="310", note="15 rules", verdict="bad"),
            Tile(label="Fresh", value="4.0 s", note="age of the newest event", verdict="good"),
        ),
        objectives=(
            Objective(
                name="Delivery between online gateways",
                target="p95 under 5 s",
                measured="p95 1.2 s",
                good_share=0.9912,
                is_kept=True,
                burn_rates={"1h": 0.18, "6h": 0.4, "24h": 1.3},
            ),
            Objective(
                name="No backlog that grows unnoticed",
                target="none over 10 min",
                measured="1 gateway",
                good_share=0.95,
                is_kept=False,
                burn_rates={"1h": 4.2, "6h": None, "24h": 0.9},
            ),
        ),
        latency={
            kind: Latency(count=64_000, p50_us=usual, p95_us=9 * usual, p99_us=40 * usual)
            for kind, usual in KINDS.items()
        },
        latency_by_hour=latency,
        slow_pairs=tuple(
            PairLatency(
                source=nodes[n],
                to=nodes[13 - n],
                count=900,
                p50_us=90_000 * (9 - n),
                p95_us=10**6 * (9 - n),
                p99_us=10**7,
            )
            for n in range(6)
        ),
        slow_nodes=tuple(
            NodeSpeed(node=nodes[n], count=9000, p50_us=10**5, p95_us=9 * 10**6 // (n + 1), p99_us=10**7)
            for n in range(8)
        ),
        throughput=tuple(
            HourThroughput(hour=hour, node=node, events=round(4000 * wave[hour] / (place + 1)))
            for hour in hours
            for place, node in enumerate(nodes)
        ),
        rates=tuple(
            HourRates(
                hour=hour, sends=20_000, retries=round(90 * wave[hour] ** 2), duplicates=hour % 3, dead_letters=hour % 7
            )
            for hour in hours
        ),
        backlogs=(
            Backlog(
                node="node-0003",
                open_deliveries=180,
                oldest_us=NOW_US - 2_900_000_000,
                growing_us=1_500_000_000,
                is_alert=True,
            ),
            Backlog(node="node-0001", open_deliveries=32, oldest_us=NOW_US - 9_000_000),
        ),
        tasks=Tasks(
            created=12_400,
            completed=12_010,
            failed=240,
            open=150,
            promised=12_250,
            kept=11_900,
            lateness=Latency(count=350, p50_us=900_000_000, p95_us=2_700_000_000, p99_us=5_400_000_000),
            capabilities=(
                Capability(name="docs.review", tasks=1200, failed=30, late=12),
                Capability(name="code.build", tasks=1100, failed=2, late=44),
            ),
        ),
        rules=tuple(
            RuleCount(rule=rule, count=count) for rule, count in (("gap", 12), ("black_hole", 30), ("fork", 4))
        ),
        findings=tuple(
            Finding(
                rule="black_hole",
                node=nodes[n % 14],
                epoch="epoch-01-00010001",
                seq=1000 + n,
                event_id=f"evt_01KJHZE0MRNA9946C5W8QE1J{n:02d}",
                agent_id="agent-00160",
            )
            for n in range(30)
        ),
        reviews=(
            Review(
                review_id="rev_01KJHZE0MRNA9946C5W8QE1JRY",
                capability_id="docs.review",
                failure_class="eta_missed <b>",
                count=12,
                sample_corr_ids=("corr_01KJHZE0MRNA9946C5W8QE1JRY",),
            ),
        ),
        freshness=tuple(
            Freshness(node=node, sealed_us=NOW_US - n * 9_000_000, last_seq=250_000 + n) for n, node in enumerate(nodes)
        ),
    )
