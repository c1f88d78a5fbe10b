"""The command that sends a campaign without Airflow: from a shell, from cron or from another scheduler."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sendoff.cli.progress import Steps
from sendoff.cli.send_result import Result, Status, again, print_rest, print_result
from sendoff.cli.shared import (
    AsJson,
    GivenPeriod,
    LedgerUrl,
    OnlyUnsent,
    Resend,
    WarehouseUrls,
    app,
    asked_period,
    connected,
    only_launch,
    opened,
    warehouse_urls,
)
from sendoff.errors import (
    GateError,
    LateError,
    NobodyLeftError,
    NotFoundError,
    NotYetError,
    RefusedError,
    SendoffError,
    UsageError,
)
from sendoff.figures import counts_in_words
from sendoff.settings import environment_settings, has_source
from sendoff.states import UNFINISHED, LaunchState

if TYPE_CHECKING:
    from sendoff import App, Campaign, Launch, Period
    from sendoff.campaign import CampaignFolder, JourneyFolder
    from sendoff.ledger import LaunchRecord, Ledger

_MOST_ASLEEP = 60.0  # seconds until it looks again, because another process may have sent the rest
_Found = TypeVar("_Found")
_MADE = "approved with: sendoff send --yes"


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of the command. ``given``: the arguments of :meth:`~sendoff.App.prepare` among them.

    ``folder``: the folder to name in hints, quoted for a shell.
    """

    given: Mapping[str, Any]
    warehouse: list[str] | None
    ledger_url: str | None
    yes: bool
    wait: bool
    folder: str
    steps: Steps = field(default_factory=Steps)


@app.command()
def send(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|LAUNCH",
            help="The folder of a campaign or journey, or the key of a launch to continue, or its beginning",
        ),
    ],
    period: GivenPeriod = None,
    warehouse: WarehouseUrls = None,
    ledger_url: LedgerUrl = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Approve the launch if its campaign needs approval")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait while it is too early. After sending, wait until no post-back comes for a while, and show the "
            "report",
        ),
    ] = False,
    size_limit: Annotated[int | None, typer.Option(min=1, help="Send to this many people at most")] = None,
    send_late: Annotated[
        bool, typer.Option("--send-late", help="Send the period however long ago it ended")
    ] = False,
    resend: Resend = 0,
    only_unsent: OnlyUnsent = False,
    reason: Annotated[
        str | None,
        typer.Option(help="Why the period is sent again, for the audit log; required with --resend"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a campaign: read its audience, check its gates, freeze the launch, and make each request once.

    Of a journey, it sends each step that is due. Run it again with the same period for the later steps, or use --wait.
    A step that is named, as FOLDER/STEP, must be due too.

    A launch that stopped continues: give the folder and the period again, or the key of the launch. Running the command
    twice, or beside a DAG, sends nothing twice: the second output says "already sent", and when that was.

    Needs SENDOFF_SERVICE_URL, SENDOFF_CLIENT_ID, SENDOFF_CLIENT_SECRET, SENDOFF_PUBLIC_URL and
    SENDOFF_POST_BACK_SECRETS.

    The exit code is 0 if all requests were made. It is 3 if the launch must not be sent now: it is too early or too
    late, a gate is closed, or a person must decide. It is 1 after an error, and 130 after Ctrl-C.
    """
    from sendoff.telemetry import exporters

    exporters.start()
    given = {
        "period": period,
        "size_limit": size_limit,
        "resend": resend,
        "only_unsent": only_unsent,
        "reason": reason,
        "send_late": send_late,
    }
    path = Path(what)
    folder = shlex.quote(what) if path.is_dir() else "FOLDER"  # which the key of a launch does not tell
    options = _Options(given, warehouse, ledger_url, yes, wait, folder)
    results = []
    for result in (
        _steps_sent(path, options) if _is_in_journey(what, path) else _launch_sent(what, path, options)
    ):
        print_result(result, folder, as_json=as_json)
        results.append(result)
    if not as_json:
        print_rest(what, results)
    codes = {each.exit_code for each in results}
    raise typer.Exit(1 if 1 in codes else max(codes))


def _is_in_journey(what: str, path: Path) -> bool:
    """Check whether the argument is a journey or a step. In a journey's folder, it may also be the key of a launch."""
    from sendoff.campaign import is_journey_folder, load_journey

    if is_journey_folder(path) or not is_journey_folder(path.parent) or path.is_dir():
        return is_journey_folder(path)
    if what != path.name or not re.fullmatch("[0-9a-f]{4,}", what):
        return True
    return what in {step.name for step in load_journey(path.parent).journey.steps}


def _launch_sent(what: str, path: Path, options: _Options) -> Iterator[Result]:
    """Send the launch of a campaign's folder, or continue one by its key, and yield the result."""
    from sendoff.campaign import load_campaign

    if path.is_dir() or (path.suffix and path.is_file()):  # a file gets the error that names its folder
        folder = load_campaign(path)
        with _connected([folder], folder.campaign.connection, options) as sender:
            yield _tried(lambda: _prepared(sender, what, folder, options.given, options.steps), options)
    else:
        record = _found(what, options)
        with _connected([], record.connection, options) as sender:
            yield _tried(lambda: sender.launch(record.launch_key), options)


def _steps_sent(path: Path, options: _Options) -> Iterator[Result]:
    """Send each step of a journey that is due, or the one that ``path`` names, and yield its result.

    Steps after an unfinished one are left out, and all further ones after an interruption. All steps have the same
    period, however long they wait.
    """
    from sendoff.campaign import is_journey_folder, load_campaign, load_journey

    only = None if is_journey_folder(path) else load_campaign(path).name
    journey = load_journey(path.parent if only else path)
    if options.given["resend"] and not only:
        example = path / journey.journey.steps[0].name
        raise UsageError(
            f"--resend: a journey is not sent again. Name the step to send again, such as {example}."
        )
    campaigns = [each for each in journey.campaigns if only in (None, each.name)]
    unfinished: set[str] = set()
    with (
        _connected(campaigns, journey.campaigns[0].campaign.connection, options) as sender,
        opened(options.ledger_url) as ledger,
    ):
        run = _JourneyRun(sender, ledger, journey, options)
        for number, (step, campaign) in enumerate(zip(journey.journey.steps, journey.campaigns, strict=True)):
            if campaign not in campaigns:
                continue
            if step.when and step.when.of in unfinished:
                unfinished.add(step.name)
                continue
            own = replace(options, folder=shlex.quote(str(path if only else path / step.name)))
            result = _tried(partial(run.prepared, number), own, is_step=True)
            yield replace(result, period=run.period)
            if result.status is Status.INTERRUPTED:
                return
            if not result.is_done:
                unfinished.add(step.name)


def _tried(prepare: Callable[[], Launch], options: _Options, *, is_step: bool = False) -> Result:
    """Prepare and send a launch, and return the result of what stops it. A step without recipients is skipped."""
    from sendoff.demo.processes import interruptible

    launch = None
    try:
        with interruptible():
            launch = prepare()
            return _sent(launch, options)
    except NotYetError as early:
        return Result(
            Status.NOT_YET, launch, f"{early} (try again at {_minute(early.until)} UTC)", early.until
        )
    except (GateError, LateError) as closed:
        is_held = launch is not None and launch.state == LaunchState.HELD
        return Result(Status.HELD if is_held else Status.NOT_SENT, launch, str(closed))
    except NobodyLeftError as nobody:
        if not is_step:
            raise
        return Result(Status.SKIPPED, launch, str(nobody))
    except SendoffError as error:
        if launch is not None:
            is_refused = isinstance(error, RefusedError)
            how = "For its report, run: sendoff report" if is_refused else "To continue, run: sendoff send"
            error.add_note(f"{how} {launch.key[:12]}")
            if is_refused:
                only = "" if launch.people is None else " --only-unsent"
                error.add_note(
                    "To send to those who got nothing, correct the cause and run: "
                    f"{again(launch, options.folder)}{only}"
                )
                if is_step:  # its other requests were made, so the next step may come
                    return Result(Status.REFUSED, launch, "\n".join([str(error), *error.__notes__]))
        raise
    except KeyboardInterrupt:
        return Result(Status.INTERRUPTED, launch)


@dataclass(slots=True)
class _JourneyRun:
    """A journey whose steps are sent for one ``period``, even if the schedule's next one begins while they wait."""

    sender: App
    ledger: Ledger
    journey: JourneyFolder
    options: _Options
    period: Period | None = None

    def prepared(self, number: int) -> Launch:
        """Freeze the launch of a step, once it is due. Raise NobodyLeftError if no one can take it."""
        period = once_due(lambda: self._period_of(number), self.options.steps, wait=self.options.wait)
        folder = self.journey.path / self.journey.journey.steps[number].name
        given = {**self.options.given, "period": period.key}
        campaign = self.journey.campaigns[number]
        return _prepared(self.sender, str(folder), campaign, given, self.options.steps)

    def _period_of(self, number: int) -> Period:
        """Return the period. Raise NotYetError if it has not ended, or if the step is not due."""
        from sendoff.campaign import launch_key
        from sendoff.launch import step_due_at

        self.period = self.period or _period(self.journey.campaigns[0].campaign, self.options.given["period"])
        assert self.period is not None
        folder, resend = self.journey.campaigns[number], self.options.given["resend"]
        key = launch_key(folder.campaign.connection, folder.name, self.period, resend)
        if self.ledger.launches.find(key):  # it was due, whatever was sent again since
            return self.period
        due = step_due_at(self.ledger, self.journey, number, self.period)
        if due and due > datetime.now(UTC):
            raise NotYetError(f"step {self.journey.journey.steps[number].name} is not due yet", due)
        return self.period


def _connected(folders: Sequence[CampaignFolder], connection: str, options: _Options) -> App:
    """Return the app that sends some campaigns. Raise SettingsError with all settings that are missing."""
    sender = connected(connection, options.ledger_url, warehouse=_urls(folders, options.warehouse))
    sender.check_settings(reads_warehouse=any(each.reads_warehouse for each in folders))
    return sender


def _urls(folders: Iterable[CampaignFolder], given: list[str] | None) -> Mapping[str, str] | None:
    """Return the warehouse of each connection that some campaigns read, or None if it is a setting that is missing."""
    campaigns = [folder.campaign for folder in folders if folder.reads_warehouse]
    if not campaigns or not (given or has_source() or environment_settings().warehouse_url):
        return None
    url_of = warehouse_urls(given or [], campaigns)
    return {name: url_of(name) for each in campaigns for name in (each.warehouse, *each.other_warehouses)}


def _prepared(
    sender: App, folder: str, campaign: CampaignFolder, given: Mapping[str, Any], steps: Steps
) -> Launch:
    period = _period(campaign.campaign, given["period"])
    shown = f" for {period.key}" if period else ""
    with steps.step(f"preparing {campaign.name}{shown}"):
        return sender.prepare(folder, **{**given, "period": period})


def _period(campaign: Campaign, given: str | None) -> Period | None:
    """Return the period to send; None if the campaign has its own.

    A launch is sent once for each period. So without a schedule, a person must name it.
    """
    if given is None and campaign.fixed_period:
        return None
    period = asked_period(campaign, given)
    if period is None:
        raise UsageError(
            "The campaign has no schedule, so its period is not known. Name it: --period 2026-11-16 for a day, or "
            "--period START/END."
        )
    return period


def _found(key: str, options: _Options) -> LaunchRecord:
    if unused := [f"--{name.replace('_', '-')}" for name, value in options.given.items() if value]:
        raise UsageError(f"{', '.join(unused)}: a launch that exists is sent as it was frozen. Leave it out.")
    try:
        with opened(options.ledger_url) as ledger:
            return ledger.launches.get(only_launch(ledger, key))
    except NotFoundError:
        raise NotFoundError(
            f"There is no folder {key}, and no launch starts with it. List the newest launches with: sendoff report"
        ) from None


def _sent(launch: Launch, options: _Options) -> Result:
    """Send a launch, and wait if that is asked for."""
    from sendoff.dispatch import check_answered

    steps = options.steps
    if launch.awaits_approval:
        # Of a launch that needs a role, the release below raises an error with what to do.
        if not options.yes and not _frozen(launch, options).approval.role:
            with opened(options.ledger_url) as ledger:
                check_answered(
                    ledger, ledger.launches.get(launch.key), ledger.audit_log.of_launch(launch.key)
                )
            raise GateError(
                f"it waits for approval. To approve it, run: sendoff send {launch.key[:12]} --yes"
            )
        launch.release(_MADE)
    status, message = Status.SENT, ""
    if finished := launch.finished_at:
        status, requests = Status.ALREADY_SENT, counts_in_words(launch.requests)
        message = f"{requests}, the last at {finished:%Y-%m-%d %H:%M} UTC. Nothing was sent now."

    def send() -> None:
        sending = steps.step("sending", sum(launch.requests.values()), lambda: _made(launch))
        with nullcontext() if finished else sending:
            launch.send()

    once_due(send, steps, wait=options.wait)
    if not options.wait:
        return Result(status, launch, message)
    quiet_for = _frozen(launch, options).report.quiet_for.words
    with steps.step(f"waiting until no post-back comes for {quiet_for} (report.quiet_for)"):
        is_quiet = launch.wait_for_post_backs()
    late = message if is_quiet else "post-backs still come, so the report is not final"
    return Result(status, launch, late, is_reported=True)


def _frozen(launch: Launch, options: _Options) -> Campaign:
    from sendoff.campaign import Campaign

    with opened(options.ledger_url) as ledger:
        return Campaign.frozen(ledger.launches.get(launch.key).definition)


def once_due(act: Callable[[], _Found], steps: Steps, *, wait: bool) -> _Found:
    """Call a function. With ``wait``, call it again after some of the time until it is no longer too early."""
    while True:
        try:
            return act()
        except NotYetError as early:
            if not wait:
                raise
            left = (early.until - datetime.now(UTC)).total_seconds()
            text = f"waiting until {_minute(early.until)} UTC: {early}"
            steps.wait(text, min(max(left, 1.0), _MOST_ASLEEP))


def _minute(until: datetime) -> str:
    """Return the first full minute from a time on, so that a call at this minute is not too early."""
    return f"{until + timedelta(seconds=59, microseconds=999_999):%Y-%m-%d %H:%M}"


def _made(launch: Launch) -> int:
    return sum(count for state, count in launch.requests.items() if state not in UNFINISHED)
