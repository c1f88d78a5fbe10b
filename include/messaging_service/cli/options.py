"""The options of ``messaging-service serve``."""

from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")]
Seed = Annotated[
    int, typer.Option(help="Seed of the simulated outcomes; the same seed gives the same outcomes.")
]
Delivered = Annotated[float, typer.Option(min=0, max=1, help="Share of messages that are delivered.")]
Opened = Annotated[float, typer.Option(min=0, max=1, help="Share of delivered messages that are opened.")]
DelayFrom = Annotated[float, typer.Option(min=0, help="Shortest delay of a delivery or opening, in seconds.")]
DelayTo = Annotated[float, typer.Option(min=0, help="Longest delay of a delivery or opening, in seconds.")]
Speed = Annotated[float, typer.Option(help="Divides both delays: 10 is ten times as fast.")]
Attempts = Annotated[int, typer.Option(min=1, help="Maximum number of attempts per post-back.")]
FirstPause = Annotated[
    float, typer.Option(min=0, help="Seconds until the second attempt; the pause then doubles.")
]
LongestPause = Annotated[float, typer.Option(min=0, help="Longest pause between attempts, in seconds.")]
Connections = Annotated[int, typer.Option(min=1, max=1_000, help="Post-backs sent at the same time.")]
Name = Annotated[
    list[str] | None,
    typer.Option(help="Spelling of a name that the document does not show, e.g. device_ids=deviceIds."),
]
WebhooksAnywhere = Annotated[
    bool, typer.Option("--webhooks-anywhere", help="Call webhook messages on other machines too.")
]
PostBacksAnywhere = Annotated[
    bool, typer.Option("--post-backs-anywhere", help="Send post-backs to other machines too.")
]
Workers = Annotated[
    int, typer.Option(min=1, max=64, help="Number of web processes, and of delivery processes.")
]
AdminForAll = Annotated[
    bool, typer.Option("--admin-for-all", help="Let other machines use /admin and the pages.")
]
