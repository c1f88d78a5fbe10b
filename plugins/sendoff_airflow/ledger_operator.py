"""What operators share: the ledger that they read or write, the launch that they are about, and their query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskAwaitingInput

from sendoff.errors import CampaignError, GateError
from sendoff_airflow import LEDGER
from sendoff_airflow.arguments import ChecksArguments, as_callbacks
from sendoff_airflow.errors import TaskEndedError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sendoff.ledger import Ledger


def author_of(context: Context) -> str:
    """Return the name that the audit log gets: who started the run, or else the DAG."""
    return context["dag_run"].triggering_user_name or f"DAG {context['dag'].dag_id}"


class LedgerOperator(ChecksArguments):
    """An operator with the connection of a ledger."""

    def __init__(self, *, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger_conn_id = ledger_conn_id

    def open_ledger(self) -> AbstractContextManager[Ledger]:
        """Open the ledger for a block, which closes it at its end."""
        from sendoff_airflow.hooks.ledger import open_ledger

        return closing(open_ledger(self.ledger_conn_id))


class OneCampaignOperator(LedgerOperator):
    """An operator that can refuse the launches of other campaigns, because users can edit the XCom with the key.

    It has no ``__init__`` of its own, because each one makes parsing a DAG file slower: Airflow wraps it.
    """

    launch_key: str | None
    only_campaign: str | Sequence[str] | None

    @contextmanager
    def open_ledger(self) -> Iterator[Ledger]:
        """Open the ledger for a block. Raise CampaignError if the launch is of another campaign."""
        with super().open_ledger() as ledger:
            if self.launch_key and (only := self.only_campaign):
                campaign = ledger.launches.get(self.launch_key).campaign
                allowed = (only,) if isinstance(only, str) else only
                if campaign not in allowed:
                    raise CampaignError(
                        f"Launch {self.launch_key} belongs to the campaign {campaign}, but this task is for "
                        f"{' or '.join(allowed)}. Clear the task that makes the launch, and then this one."
                    )
            yield ledger


class LaunchOperator(OneCampaignOperator):
    """An operator on one launch.

    :param launch_key: the launch (templated)
    :param only_campaign: the name of a campaign, or its names: fail if the launch belongs to another one; default: take
        any launch
    """

    launch_key: str
    template_fields: Sequence[str] = ("launch_key",)

    def __init__(
        self, *, launch_key: str, only_campaign: str | Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.only_campaign = only_campaign


class NotifyingOperator(LedgerOperator):
    """An operator that calls notifiers.

    :param notifiers: one or more notifiers. If one fails, the log says so, and the others are called anyway
    """

    def __init__(
        self,
        *,
        notifiers: Callable[[Context], None] | Sequence[Callable[[Context], None]] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.notifiers: Any = [self._careful(each) for each in as_callbacks("notifiers", notifiers)]

    def _careful(self, notifier: Callable[[Context], None]) -> Callable[[Context], bool]:
        """Return a notifier that only warns if it fails, and returns whether it succeeded."""

        def notify(context: Context) -> bool:
            try:
                copy(notifier)(context)  # a notifier of Airflow keeps the texts of its first call
            except Exception as error:
                self.log.warning("A notifier failed: %s", type(error).__name__)
                return False
            return True

        return notify


class AskingOperator(NotifyingOperator, LaunchOperator):
    """An operator that asks people about a launch."""

    @contextmanager
    def asking(self, **about: Any) -> Iterator[None]:
        """Ask in a block. Airflow keeps what the question is about for ``execute_complete``, where no user can edit it.

        An XCom and a template that reads one may have changed until the answer comes.
        """
        try:
            yield
        except TaskAwaitingInput as wait:
            wait.kwargs = {**(wait.kwargs or {}), "asked_about": self.launch_key, **about}
            raise

    def check_asked(self, asked_about: str | None) -> None:
        """Raise GateError if the question was about another launch than that of this task now."""
        if asked_about not in (None, self.launch_key):
            raise GateError(
                f"The question was about launch {asked_about}, but launch_key is {self.launch_key} now, so the answer "
                "changes nothing. Clear this task to ask again."
            )


class QueryingOperator(LedgerOperator):
    """An operator that runs a query on a warehouse. Some also make the requests of a launch."""

    _at_work: str | None = None  # the key of the launch

    @contextmanager
    def at_work(self, launch_key: str) -> Iterator[None]:
        """Make requests of a launch in a block, which Airflow can end."""
        try:
            self._at_work = launch_key
            yield
        finally:
            self._at_work = None

    def on_kill(self) -> None:
        """End the query, or start no further request.

        Airflow calls this in the thread that waits for the others, and kills the process five seconds later.
        """
        from sendoff_airflow.hooks.warehouse import end_query

        end_query()
        if key := self._at_work:
            self._at_work = None
            raise TaskEndedError(
                f"Launch {key}: Airflow ended the task before all requests were made. Retry the task."
            )
