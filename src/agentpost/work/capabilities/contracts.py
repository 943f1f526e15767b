"""The contracts of capabilities, as tasks are held to them: inputs at task_create, outputs at task_complete (CAP-5).

The executor's side of the pair promises more (CAP-7): when it accepts, how far off its ETA may be, how often it says
how it goes, and what its failures look like.

A gateway checks with the manifest that the catalog names. One that has not got it yet lets an input pass: the owner's
gateway always has it, and checks what comes out.
"""

import math
from collections.abc import Iterator
from typing import Any

from agentpost.delivery.ports import RoomView
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.reviews import Trigger
from agentpost.protocol.taskbook import TaskRecord
from agentpost.work.capabilities.book import ManifestBook
from agentpost.work.capabilities.manifest import Contract
from agentpost.work.contracts import ContractChecker
from agentpost.work.reviews.reporter import Case, ReviewReporter
from agentpost.work.sweeping import Promise

__all__ = ["CapabilityContracts"]


class CapabilityContracts:
    """Implements `delivery.task_moves.Contracts` and `work.sweeping.Promises`."""

    def __init__(
        self, *, room: RoomView, book: ManifestBook, reporter: ReviewReporter, checker: ContractChecker
    ) -> None:
        self._checker = checker
        self._room = room
        self._book = book
        self._reporter = reporter

    async def check_input(self, capability_ids: tuple[str, ...], value: Any) -> None:
        for _, contract in self._contracts(capability_ids):
            if contract.input is not None:
                await self._checker.check(contract.input, value, field="input")

    async def check_output(self, record: TaskRecord, value: Any) -> None:
        for capability_id, contract in self._contracts(_named(record)):
            if contract.output is None:
                continue
            try:
                await self._checker.check(contract.output, value, field="output")
            except Refusal as refusal:
                if refusal.code is Code.CONTRACT_MISMATCH:
                    await self._report(record, capability_id)
                raise

    def check_eta(self, record: TaskRecord, eta_seconds: float) -> None:
        for capability_id, contract in self._contracts(_named(record)):
            longest = contract.executor.max_eta_seconds
            if longest is not None and eta_seconds > longest:
                raise Refusal(
                    Code.CONTRACT_MISMATCH,
                    f"{capability_id} is promised within {longest} s, and this ETA is {math.ceil(eta_seconds)} s away",
                    field="etaAt",
                    hint="Say an earlier ETA, or leave the task to another agent.",
                )

    async def look_at_failure(self, record: TaskRecord, failure_class: str, error_summary: str) -> None:
        for capability_id, contract in self._contracts(_named(record)):
            if not await self._is_declared(contract, failure_class, error_summary):
                await self._report(record, capability_id)

    def of(self, record: TaskRecord) -> Promise:
        """What the executor of a task has promised about how it is done; the strictest, if several have."""
        sides = [contract.executor for _, contract in self._contracts(_named(record))]
        return Promise(
            accept_within_seconds=min(
                (each.accept_within_seconds for each in sides if each.accept_within_seconds), default=None
            ),
            progress_every_seconds=min(
                (each.progress_every_seconds for each in sides if each.progress_every_seconds), default=None
            ),
        )

    async def _is_declared(self, contract: Contract, failure_class: str, error_summary: str) -> bool:
        classes = contract.executor.failure_classes
        if classes and failure_class not in classes:
            return False
        if contract.failure is None:
            return True
        try:
            said = {"failureClass": failure_class, "errorSummary": error_summary}
            await self._checker.check(contract.failure, said, field="failure")
        except Refusal as refusal:
            return refusal.code is not Code.CONTRACT_MISMATCH
        return True

    async def _report(self, record: TaskRecord, capability_id: str) -> None:
        await self._reporter.report(
            Case(
                trigger=Trigger.CONTRACT_MISMATCH,
                capability_id=capability_id,
                corr_id=record.corr_id,
                failure_class=Code.CONTRACT_MISMATCH.value,
            )
        )

    def _contracts(self, capability_ids: tuple[str, ...]) -> Iterator[tuple[str, Contract]]:
        if not capability_ids:
            # A sweep asks for every task, and most have no capability.
            return
        catalog = self._room.snapshot().catalog
        for capability_id in capability_ids:
            record = catalog.get(capability_id)
            page = None if record is None else self._book.by_ref(capability_id, record.contract_schema_ref)
            if page is not None:
                yield capability_id, page.manifest.declaration.contract


def _named(record: TaskRecord) -> tuple[str, ...]:
    alone = () if record.capability_id is None else (record.capability_id,)
    return tuple(dict.fromkeys((*alone, *record.required_capabilities)))
