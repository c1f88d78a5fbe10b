"""The command that compares two versions of campaigns, such as a branch with its base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import compress, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sendoff.cli.campaigns import previewed_period
from sendoff.cli.shared import AsJson, GivenPeriod, WarehouseUrls, app, print_json, warehouse_urls
from sendoff.errors import CampaignError
from sendoff.figures import counted

if TYPE_CHECKING:
    from sendoff.campaign import CampaignFolder
    from sendoff.launch import RecipientChange

    Pair = tuple[CampaignFolder | None, CampaignFolder | None]

DIFFERS = 3
"""The exit code with ``--exit-code`` if something changes; 1 means an error, as for every command."""

Old = Annotated[
    Path, typer.Argument(help="A campaign folder, or a folder of campaigns", exists=True, file_okay=False)
]
New = Annotated[Path, typer.Argument(help="The same folder after the change", exists=True, file_okay=False)]


@app.command()
def diff(
    old: Old,
    new: New,
    preview: Annotated[
        bool,
        typer.Option(
            "--preview",
            help="Also run the queries of changed campaigns, and count who is added and removed",
        ),
    ] = False,
    warehouse: WarehouseUrls = None,
    period: GivenPeriod = None,
    as_json: AsJson = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help=f"End with exit code {DIFFERS} if something changes")
    ] = False,
) -> None:
    """Show what a change of campaigns changes for their recipients, as Markdown for a pull request.

    It starts with a sentence. Sections follow: messages, audience, schedule and gates, variants and holdout, and
    changes without an effect on recipients. It shows message texts and queries.

    Campaigns are compared by name, and journeys step by step. If both folders are campaigns, they are compared with
    each other.

    With --preview, both versions of each changed campaign are planned for the same period, without a ledger. The
    section recipients has their counts, and the gates of the new version.

    The exit code is 1 if a campaign has a mistake, or if a new version cannot be launched.
    """
    from sendoff.campaign import compare_campaigns
    from sendoff.report import as_markdown, describe_difference, difference_as_json

    pairs = _pairs(old, new)
    found = [compare_campaigns(*pair) for pair in pairs]
    differ = [bool(each.files) or each.old != each.new for each in found]
    counts = _counts([*compress(pairs, differ)], warehouse, period) if preview else repeat(None)
    results = [(each, next(counts) if differs else None) for each, differs in zip(found, differ, strict=True)]
    changed = list(compress(results, differ))
    if as_json:
        print_json({"campaigns": [difference_as_json(*each) for each in results]})
    else:
        for each in changed:
            typer.echo(as_markdown(describe_difference(*each)))
        if same := len(found) - len(changed):
            do = "does" if same == 1 else "do"
            typer.echo(f"{counted(same, 'campaign')} {do} not change.")
    if any(count and count.new_problem for _, count in changed):
        raise typer.Exit(1)
    if changed and exit_code:
        raise typer.Exit(DIFFERS)


def _pairs(old: Path, new: Path) -> list[Pair]:
    """Return both versions of each campaign; None for one that does not exist on that side."""
    from sendoff.campaign import is_campaign_folder

    before, after = _campaigns(old), _campaigns(new)
    are_folders = is_campaign_folder(old) and is_campaign_folder(new)
    if are_folders and len(before) == len(after) == 1:
        return [*zip(before.values(), after.values(), strict=True)]
    if not before and not after:
        raise CampaignError(f"there is no campaign in {old} or {new}. Name the folders of the campaigns")
    return [(before.get(name), after.get(name)) for name in sorted({*before, *after})]


def _counts(pairs: Sequence[Pair], given: list[str] | None, period: str | None) -> Iterator[RecipientChange]:
    """Yield how the recipients of each campaign change, for the period of its new version."""
    from sendoff.launch import compare_recipients

    campaigns = [folder.campaign for pair in pairs for folder in pair if folder]
    urls = warehouse_urls(given or [], campaigns)
    now = datetime.now(UTC)
    for old, new in pairs:
        folder = new or old
        assert folder is not None
        previewed, _ = previewed_period(folder.campaign, period)
        yield compare_recipients(old, new, period=previewed, warehouses=urls, now=now)


def _campaigns(place: Path) -> dict[str, CampaignFolder]:
    """Return the campaigns in a folder by name. Raise CampaignError with the mistakes of all of them."""
    from sendoff.campaign import campaign_folders, load_campaigns

    return {each.name: each for each in load_campaigns(campaign_folders(place))}
