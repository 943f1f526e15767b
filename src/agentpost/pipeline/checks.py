"""`pipeline check`: what is broken, with the events that show it. Reads the tables of a version; needs no Spark."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any, Final

import pyarrow as pa
from msgspec import Struct

from agentpost.pipeline.events import Bronze, Place
from agentpost.pipeline.files import Files
from agentpost.pipeline.warehouse import Snapshot, Warehouse

__all__ = ["CheckResult", "Finding", "check"]

# The order in which people want to read them: what is lost or forged first.
_RULES: Final = (
    "chain_break",
    "fork",
    "bad_signature",
    "foreign_source",
    "gap",
    "regression",
    "bad_segment",
    "bad_event",
    "clock_off",
    "sealer_clock",
    "double_injection",
    "duplicate",
    "wrong_acker",
    "orphan_ack",
    "accept_before_emit",
    "unaccepted_outcome",
    "black_hole",
    "sla_breach",
    "dead_letter",
    "expired",
    "eta_missed",
    "task_failed",
)
_text: Final = pa.string()
_FINDINGS: Final = pa.schema(
    [
        ("rule", _text),
        ("node", _text),
        ("epoch", _text),
        ("seq", pa.int64()),
        ("event_id", _text),
        ("agent_id", _text),
        ("corr_id", _text),
        ("at_us", pa.int64()),
        ("text", _text),
    ]
)


class Finding(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One broken rule; docs/pipeline.md says what each field means for which rule."""

    rule: str
    node: str
    epoch: str
    seq: int
    event_id: str | None = None
    agent_id: str | None = None
    corr_id: str | None = None
    at_us: int | None = None
    text: str = ""


class CheckResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is broken, and what else was seen; as of a version of the tables."""

    version: int
    events: int
    now_us: int
    findings: tuple[Finding, ...]
    observed: tuple[Finding, ...] = ()


def check(lake: Files, warehouse: Warehouse, *, with_observed: bool = False) -> CheckResult:
    """Every finding of the current version, worst first."""
    version = warehouse.require()
    bronze = Bronze(lake, warehouse, version)
    return CheckResult(
        version=version.number,
        events=version.events,
        now_us=version.now_us,
        findings=_findings(warehouse, version, bronze, "integrity"),
        observed=_findings(warehouse, version, bronze, "observed") if with_observed else (),
    )


def _findings(warehouse: Warehouse, version: Snapshot, bronze: Bronze, table: str) -> tuple[Finding, ...]:
    rows = warehouse.read(version, table, _FINDINGS, columns=_FINDINGS.names).to_pylist()
    # The tables do not carry the conversation of every delivery; where a finding points to, it is written.
    unknown = [_place(row) for row in rows if row["corr_id"] is None]
    found = bronze.at(unknown) if unknown else {}
    for row in rows:
        if row["corr_id"] is None and (event := found.get(_place(row))) is not None:
            row["corr_id"] = event["corr_id"] or None
    findings = [Finding(**row) for row in rows]
    return tuple(sorted(findings, key=_order))


def _order(finding: Finding) -> tuple[int, str, str, int, str, str]:
    rank = _RULES.index(finding.rule) if finding.rule in _RULES else len(_RULES)
    return rank, finding.node, finding.epoch, finding.seq, finding.event_id or "", finding.agent_id or ""


def _place(row: dict[str, Any]) -> Place:
    return Place(row["node"], row["epoch"], row["seq"])
