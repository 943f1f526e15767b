"""The contracts of capabilities, as tasks are held to them (CAP-5): inputs at task_create, outputs at task_complete.

A gateway checks with the manifest that the catalog names. One that has not got it yet lets an input pass: the owner's
gateway always has it, and checks what comes out.
"""

from collections.abc import Iterator
from typing import Any

from agentpost.delivery.ports import RoomView
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.reviews import Trigger
from agentpost.protocol.taskbook import TaskRecord
from agentpost.work.capabilities.book import ManifestBook
from agentpost.work.capabilities.manifest import Contract
from agentpost.work.contracts import check_contract
from agentpost.work.reviews.reporter import Case, ReviewReporter

__all__ = ["CapabilityContracts"]


class CapabilityContracts:
    """Implements `delivery.task_moves.Contracts`."""

    def __init__(self, *, room: RoomView, book: ManifestBook, reporter: ReviewReporter) -> None:
        self._room = room
        self._book = book
        self._reporter = reporter

    def check_input(self, capability_ids: tuple[str, ...], value: Any) -> None:
        for _, contract in self._contracts(capability_ids):
            if contract.input is not None:
                check_contract(contract.input, value, field="input")

    async def check_output(self, record: TaskRecord, value: Any) -> None:
        for capability_id, contract in self._contracts(_named(record)):
            if contract.output is None:
                continue
            try:
                check_contract(contract.output, value, field="output")
            except Refusal as refusal:
                if refusal.code is Code.CONTRACT_MISMATCH:
                    await self._reporter.report(
                        Case(
                            trigger=Trigger.CONTRACT_MISMATCH,
                            capability_id=capability_id,
                            corr_id=record.corr_id,
                            failure_class=Code.CONTRACT_MISMATCH.value,
                        )
                    )
                raise

    def cadence_seconds(self, capability_id: str) -> int | None:
        """How often its executor says how it goes (CAP-7); None where that is not promised or not known here."""
        for _, contract in self._contracts((capability_id,)):
            return contract.executor.progress_every_seconds
        return None

    def _contracts(self, capability_ids: tuple[str, ...]) -> Iterator[tuple[str, Contract]]:
        catalog = self._room.snapshot().catalog
        for capability_id in capability_ids:
            record = catalog.get(capability_id)
            page = None if record is None else self._book.by_ref(capability_id, record.contract_schema_ref)
            if page is not None:
                yield capability_id, page.manifest.declaration.contract


def _named(record: TaskRecord) -> tuple[str, ...]:
    alone = () if record.capability_id is None else (record.capability_id,)
    return tuple(dict.fromkeys((*alone, *record.required_capabilities)))
