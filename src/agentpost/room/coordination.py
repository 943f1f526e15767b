"""The `coordination` map as far as coordinators need it (OPS-4). The guard of the room has the last word on who may."""

from typing import Any, Final

from agentpost.protocol.coordination import DEFAULT_SWEEP_SECONDS, CoordinationState, Preference, most_terms
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import format_ms
from agentpost.room.document import Room
from agentpost.room.records import Record, is_removed
from agentpost.room.schema import check_id
from agentpost.world import Clock

__all__ = ["CoordinationBoard"]

_MAP: Final = "coordination"
_LEAST_SECONDS: Final = 10
_MOST_SECONDS: Final = 86_400


class CoordinationBoard:
    def __init__(self, room: Room, clock: Clock) -> None:
        self._room = room
        self._clock = clock

    def state(self) -> CoordinationState:
        """What the room says now. What this version does not understand is passed over."""
        preferences: dict[str, Preference] = {}
        terms: dict[str, int] = {}
        backups: dict[str, str] = {}
        most = most_terms(self._clock.now_ms())
        for key, record in self._room.records(_MAP).items():
            subject, _, name = key.partition(":")
            if is_removed(record):
                continue
            if subject == "pref":
                preferences[name] = Preference(
                    desired_coordinator=record.get("desiredCoordinator"),
                    desired_sweep_every_seconds=_number(record, "desiredSweepEverySeconds"),
                )
            elif subject == "sweepTerm":
                term = _number(record, "value") or 0
                terms[name] = term if term <= most else 0
            elif subject == "delegationIntent" and record.get("backupAgent"):
                backups.setdefault(record["ownerAgent"], record["backupAgent"])
        return CoordinationState(
            coordinator=self._value("coordinator"),
            sweep_every_seconds=self._value("sweepEverySeconds") or DEFAULT_SWEEP_SECONDS,
            preferences=preferences,
            terms=terms,
            backups=backups,
        )

    def appoint(self, coordinator: str, *, confirm_last_resort: bool) -> None:
        """Make a node the coordinator. To put one in the place of another takes `confirm_last_resort`."""
        self.check_appointment(coordinator, confirm_last_resort=confirm_last_resort)
        fields: dict[str, Any] = {"value": coordinator}
        if self._value("coordinator") not in (None, coordinator):
            fields["confirmLastResort"] = True
        self._room.write(_MAP, "coordinator", fields)

    def check_appointment(self, coordinator: str, *, confirm_last_resort: bool) -> None:
        """Refuse what `appoint` would refuse."""
        check_id(coordinator, field="coordinator")
        if not self._room.keys.is_backbone(coordinator) or self._room.keys.is_revoked(coordinator):
            raise Refusal(
                Code.INVALID_FIELD,
                f"{coordinator} is not a backbone node of this mesh",
                field="coordinator",
                hint="Only nodes that are always on can coordinate: see `agentpost nodes`.",
            )
        present: str | None = self._value("coordinator")
        if present not in (None, coordinator) and not confirm_last_resort:
            raise Refusal(
                Code.CONFLICT,
                f"{present} is the coordinator",
                field="confirmLastResort",
                hint="If it is gone for good, or agrees, say so: --confirm-last-resort.",
            )

    def set_cadence(self, sweep_every_seconds: int) -> None:
        """How often is swept. Only the coordinator says that."""
        _check_seconds(sweep_every_seconds, "sweepEverySeconds")
        self._room.write(_MAP, "sweepEverySeconds", {"value": sweep_every_seconds})

    def prefer(self, preference: Preference) -> None:
        """What this node would like; nothing of it decides by itself."""
        if preference.desired_coordinator is not None:
            check_id(preference.desired_coordinator, field="desiredCoordinator")
        if preference.desired_sweep_every_seconds is not None:
            _check_seconds(preference.desired_sweep_every_seconds, "desiredSweepEverySeconds")
        self._room.write(
            _MAP,
            f"pref:{self._room.node_id}",
            {
                "desiredCoordinator": preference.desired_coordinator,
                "desiredSweepEverySeconds": preference.desired_sweep_every_seconds,
                "updatedAt": format_ms(self._clock.now_ms()),
            },
        )

    def begin_term(self, term: int) -> None:
        """Say that this node leads from now on. Written when somebody begins to lead, not with every sweep (ROOM-4)."""
        self._room.write(_MAP, f"sweepTerm:{self._room.node_id}", {"value": term})

    def _value(self, key: str) -> Any:
        record = self._room.record(_MAP, key)
        return None if record is None or is_removed(record) else record.get("value")


def _number(record: Record, name: str) -> int | None:
    value = record.get(name)
    return int(value) if isinstance(value, int | float) else None


def _check_seconds(seconds: int, field: str) -> None:
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise Refusal(
            Code.INVALID_FIELD, f"{field} must be from {_LEAST_SECONDS} to {_MOST_SECONDS} seconds", field=field
        )
