"""The command that compares two versions of campaigns, such as a branch with its base."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sendoff.cli.shared import AsJson, app
from sendoff.errors import CampaignError
from sendoff.figures import counted

if TYPE_CHECKING:
    from sendoff.campaign import CampaignFolder, Difference

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
    as_json: AsJson = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help=f"End with exit code {DIFFERS} if something changes")
    ] = False,
) -> None:
    """Show what a change of campaigns changes for their recipients, as Markdown for a pull request.

    It starts with a sentence. Sections follow: messages, audience, schedule and gates, variants and holdout, and
    changes without an effect on recipients. It shows message texts and queries.

    Campaigns are compared by name. If both folders are campaigns, they are compared with each other.

    The exit code is 1 if a campaign has a mistake.
    """
    from sendoff.report import as_markdown, describe_difference, difference_as_json

    found = list(_differences(old, new))
    changed = [each for each in found if each.files or each.old != each.new]
    if as_json:
        typer.echo(json.dumps({"campaigns": [difference_as_json(each) for each in found]}, indent=2))
    else:
        for each in changed:
            typer.echo(as_markdown(describe_difference(each)))
        if same := len(found) - len(changed):
            do = "does" if same == 1 else "do"
            typer.echo(f"{counted(same, 'campaign')} {do} not change.")
    if changed and exit_code:
        raise typer.Exit(DIFFERS)


def _differences(old: Path, new: Path) -> Iterator[Difference]:
    from sendoff.campaign import compare_campaigns, is_campaign_folder

    before, after = _campaigns(old), _campaigns(new)
    if is_campaign_folder(old) and is_campaign_folder(new):
        yield compare_campaigns(*before.values(), *after.values())
        return
    if not before and not after:
        raise CampaignError(f"there is no campaign in {old} or {new}. Name the folders of the campaigns")
    for name in sorted({*before, *after}):
        yield compare_campaigns(before.get(name), after.get(name))


def _campaigns(place: Path) -> dict[str, CampaignFolder]:
    """Return the campaigns in a folder by name. Raise CampaignError with the mistakes of all of them."""
    from sendoff.campaign import campaign_folders, check_folders

    if not list(campaign_folders(place)):
        return {}
    checked = check_folders([place])
    mistakes: Sequence[object] = [mistake for each in checked for mistake in each.mistakes]
    if mistakes:
        raise CampaignError("\n".join(map(str, mistakes)))
    return {each.path.name: each.campaign for each in checked if each.campaign}
