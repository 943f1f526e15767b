"""What one side reads of one outbox over one link, and what of it came too early and has to come again (CUR-3)."""

from msgspec import Struct

from agentpost.delivery.frames import Events
from agentpost.delivery.joint import JointReader
from agentpost.delivery.mirror import MirrorKeeper
from agentpost.delivery.reader import StreamReader

__all__ = ["Subscription"]


class Subscription(Struct, kw_only=True):
    """What this side reads of one outbox over one link."""

    reader: StreamReader | MirrorKeeper | JointReader
    # Where the cursor stood when it was asked for anew, after a gap. None once all is there that was passed over.
    asked_anew_at: int | None = None
    # How far the batches reach that came after a gap, and were passed over: an epoch, and a seq in it.
    passed_over: tuple[str, int] | None = None

    @property
    def seq(self) -> int:
        """How far the outbox was read."""
        at = self.reader.position()
        return 0 if at is None else at.last_seq

    def pass_over(self, frame: Events) -> None:
        """A batch came too early, and is missing from now on."""
        before = self.passed_over
        through_seq = before[1] if before is not None and before[0] == frame.epoch else 0
        self.passed_over = (frame.epoch, max(through_seq, frame.through_seq))

    def note_progress(self) -> None:
        """What was asked for has come if the cursor is past all that was passed over. A later life has other seqs."""
        at, missing = self.reader.position(), self.passed_over
        if at is None or missing is None or at.epoch != missing[0] or at.last_seq >= missing[1]:
            self.asked_anew_at = self.passed_over = None
