"""The operator that feeds the suppression list from a query or a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from sendoff_airflow.arguments import as_text
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import QueryingOperator, author_of
from sendoff_airflow.operators.recipients import HasRecipients, of_shown

if TYPE_CHECKING:
    from airflow.sdk import Context

Action = Literal["add", "remove", "replace"]

_COUNTS = ("added", "removed", "prolonged", "shortened")


class SuppressOperator(HasRecipients, QueryingOperator):
    """Feed the suppression list from a query or a file. Campaigns stop sending to its recipients at once.

    The rows are streamed, so a large result needs little memory. They have exactly one identifier column, as in an
    audience query. Return ``named`` (recipients in the rows), ``skipped`` (rows without a usable identifier), ``added``
    and ``removed``. After ``replace``, also return ``prolonged`` and ``shortened`` (entries that end later or earlier
    than before). The log, XCom and the audit log have no identifiers.

    :param recipients: SQL, a ``.sql`` file, or the path or URL of a Parquet, CSV or Arrow file (templated)
    :param reason: why, for the entries and the audit log (templated)
    :param source: the name that the entries keep, such as ``crm`` (templated)
    :param action: ``replace`` makes the entries of this source and scope exactly those of the rows, with this
        ``until``; ``add`` adds entries, and makes no entry end earlier; ``remove`` ends the entries of this source and
        scope
    :param topic: only campaigns on this topic (templated)
    :param channel: only campaigns that use this channel, such as ``email``
    :param everything: every campaign, also transactional ones
    :param until: the end of the entries, as the start of a day in UTC, such as ``2027-01-31``; default: no end
        (templated)
    :param most_removed: fail and change nothing if ``replace`` would remove more than this percentage of the entries of
        the source, such as after a query that found nothing
    :param warehouse: the connection that a query reads
    """

    template_fields: Sequence[str] = ("recipients", "reason", "source", "topic", "until")
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"recipients": "sql"}

    def __init__(  # noqa: PLR0913 - an interface for users
        self,
        *,
        recipients: Any,
        reason: str,
        source: str,
        action: Action = "replace",
        topic: str | None = None,
        channel: str | None = None,
        everything: bool = False,
        until: str | None = None,
        most_removed: float = 20,
        warehouse: str = "sendoff_warehouse",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if action not in get_args(Action):
            raise ValueError(f"action: found {action!r}. Use {', '.join(get_args(Action))}.")
        self.recipients = recipients
        self.reason = reason
        self.source = source
        self.action = action
        self.topic = topic
        self.channel = channel
        self.everything = everything
        self.until = until
        self.most_removed = most_removed
        self.warehouse = warehouse

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:
        """Read the recipients and change the list."""
        from datetime import UTC, datetime

        from sendoff.launch import (
            end_of,
            recipients_of,
            replace_suppressions,
            suppress,
            suppression_scope,
            unsuppress,
        )
        from sendoff.ledger import SuppressionChange
        from sendoff_airflow.hooks.warehouse import warehouse_source

        scope = suppression_scope(as_text(self.topic), self.channel, everything=self.everything)
        until = as_text(self.until) if isinstance(self.until, int | float) else self.until
        end = end_of(until, datetime.now(UTC))
        given = of_shown(self.recipients, self.dag.folder)
        named = recipients_of(given, source=lambda: warehouse_source(self.warehouse))
        who = author_of(context)
        source, reason = as_text(self.source), as_text(self.reason)
        change = SuppressionChange(scope, named.identified_by, source, who, reason, end)
        counts = {"named": len(named), "skipped": named.skipped, "added": 0, "removed": 0}
        with self.open_ledger() as ledger:
            if self.action == "add":
                counts["added"] = suppress(ledger, change, named.identifiers)
            elif self.action == "remove":
                counts["removed"] = unsuppress(ledger, change, named.identifiers)
            else:
                done = replace_suppressions(ledger, change, named.identifiers, most_removed=self.most_removed)
                counts.update({name: getattr(done, name) for name in _COUNTS})
        self.log.info("Suppression list, %s, source %s: %s", scope, source, counts)
        return counts
