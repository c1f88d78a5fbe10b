"""The recipients of a launch with some verdicts, as the audience of another launch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sendoff.campaign import did_you_mean
from sendoff.errors import AudienceError
from sendoff.ledger import Ledger
from sendoff.report.export import VerdictRows
from sendoff.states import Verdict
from sendoff.warehouse import Rows, Wording

_WORDING = Wording("it", "{name} must be 64-bit integers", "{name} must be text")


@dataclass(frozen=True, slots=True)
class VerdictsOf:
    """The recipients that the newest report of a launch has some verdicts for, such as ``("missing",)``.

    As an audience, they have their identifiers and no other columns. The holdout of the launch is not among them.
    """

    launch_key: str
    verdicts: Collection[str]

    def rows(self, ledger: Ledger) -> Rows:
        """Return the recipients as rows, which are read from the ledger later.

        Raise AudienceError for an unknown verdict. Reading the rows raises NotFoundError if the launch was never
        reconciled, and ConflictError if others keep reconciling it meanwhile.
        """
        known = [verdict.value for verdict in Verdict]
        for each in self.verdicts:
            if each not in known:
                raise AudienceError(
                    f"{each!r} is not a verdict{did_you_mean(each, known)}. Use {', '.join(known)}"
                )
        return Rows(f"the verdicts of launch {self.launch_key}", _WORDING, lambda: self._open(ledger))

    @contextmanager
    def _open(self, ledger: Ledger) -> Iterator[Iterator[pa.RecordBatch]]:
        yield self._batches(VerdictRows.of(ledger, self.launch_key))

    def _batches(self, rows: VerdictRows) -> Iterator[pa.RecordBatch]:
        for verdict in dict.fromkeys(self.verdicts):
            for batch in rows.batches(verdict):
                recipients = batch.filter(pc.invert(batch["held_out"]))
                yield recipients.select([rows.launch.identified_by])
