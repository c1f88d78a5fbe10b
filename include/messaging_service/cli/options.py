"""The options of ``messaging-service serve``."""

from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")]
Seed = Annotated[int, typer.Option(help="The same seed draws the same outcomes.")]
Delivered = Annotated[float, typer.Option(min=0, max=1, help="Share of messages that arrive.")]
Opened = Annotated[float, typer.Option(min=0, max=1, help="Share of those that are opened then.")]
DelayFrom = Annotated[float, typer.Option(min=0, help="Shortest delay of a delivery or opening, seconds.")]
DelayTo = Annotated[float, typer.Option(min=0, help="Longest delay of each, seconds.")]
Speed = Annotated[float, typer.Option(help="Divides both delays: 10 is ten times as fast.")]
Attempts = Annotated[int, typer.Option(min=1, help="How often a post-back is tried.")]
FirstPause = Annotated[float, typer.Option(min=0, help="Seconds until the second try, doubled each time.")]
LongestPause = Annotated[float, typer.Option(min=0, help="Longest pause between tries, seconds.")]
Connections = Annotated[int, typer.Option(min=1, max=1_000, help="Post-backs under way at once.")]
Name = Annotated[
    list[str] | None,
    typer.Option(help="Spelling of a name that the document does not show, e.g. device_ids=deviceIds."),
]
WebhooksAnywhere = Annotated[
    bool, typer.Option("--webhooks-anywhere", help="Call webhook messages on other machines than this one.")
]
PostBacksAnywhere = Annotated[
    bool, typer.Option("--post-backs-anywhere", help="Send post-backs to other machines than this one.")
]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Processes that answer, and as many that deliver.")]
AdminForAll = Annotated[
    bool, typer.Option("--admin-for-all", help="Answer /admin to other machines than this one.")
]
