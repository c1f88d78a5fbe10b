"""Export the suppression list: one row for each entry in force, so that opt-outs get back into other systems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import pyarrow as pa

from sendoff.arguments import check_source
from sendoff.ledger import Decision, Ledger
from sendoff.states import DecisionKind

_TEXT, _TIME = pa.string(), pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class SuppressionRows:
    """The entries in force at a moment, as rows that are built while they are read, sorted by identifier.

    ``who`` reads them, for the audit log. ``source``: only entries of this source, such as ``opt-out``; None: of every
    source. Raise UsageError if it is blank.
    """

    ledger: Ledger
    now: datetime
    who: str
    source: str | None = None
    schema: ClassVar[pa.Schema] = pa.schema(
        [
            *(
                pa.field(name, _TEXT, nullable=False)
                for name in ("identified_by", "identifier", "scope", "source")
            ),
            pa.field("reason", _TEXT),
            pa.field("author", _TEXT, nullable=False),
            pa.field("added_at", _TIME, nullable=False),
            pa.field("until", _TIME),
            pa.field("launch_key", _TEXT),
        ]
    )

    def __post_init__(self) -> None:
        check_source(self.source)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record the export in the audit log. Then yield the rows. There may be no batch."""
        detail = {"of": "suppression list", "source": self.source}
        self.ledger.audit_log.record(Decision(None, DecisionKind.EXPORTED, self.who, None, self.now, detail))
        for entries in self.ledger.suppressions.in_force(self.now, self.source):
            columns = [[getattr(each, name) for each in entries] for name in self.schema.names]
            yield pa.record_batch(columns, schema=self.schema)
