"""The options of ``messaging-service serve``."""

from typing import Annotated

import typer

HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")]
SeedOption = Annotated[
    int, typer.Option(help="Seed of the simulated outcomes; the same seed gives the same outcomes.")
]
DeliveredOption = Annotated[float, typer.Option(min=0, max=1, help="Share of messages that are delivered.")]
OpenedOption = Annotated[
    float, typer.Option(min=0, max=1, help="Share of delivered messages that are opened.")
]
DelayFromOption = Annotated[
    float, typer.Option(min=0, help="Shortest delay of a delivery or opening, in seconds.")
]
DelayToOption = Annotated[
    float, typer.Option(min=0, help="Longest delay of a delivery or opening, in seconds.")
]
SpeedOption = Annotated[float, typer.Option(help="Divides both delays: 10 is ten times as fast.")]
AttemptsOption = Annotated[int, typer.Option(min=1, help="Maximum number of attempts per post-back.")]
FirstPauseOption = Annotated[
    float, typer.Option(min=0, help="Seconds until the second attempt; the pause then doubles.")
]
LongestPauseOption = Annotated[float, typer.Option(min=0, help="Longest pause between attempts, in seconds.")]
ConnectionsOption = Annotated[int, typer.Option(min=1, max=1_000, help="Post-backs sent at the same time.")]
NameOption = Annotated[
    list[str] | None,
    typer.Option(help="Spelling of a name that the document does not show, e.g. device_ids=deviceIds."),
]
WebhooksAnywhereOption = Annotated[
    bool, typer.Option("--webhooks-anywhere", help="Call webhook messages on other machines too.")
]
PostBacksAnywhereOption = Annotated[
    bool, typer.Option("--post-backs-anywhere", help="Send post-backs to other machines too.")
]
WorkersOption = Annotated[
    int, typer.Option(min=1, max=64, help="Number of web processes, and of delivery processes.")
]
AdminForAllOption = Annotated[
    bool, typer.Option("--admin-for-all", help="Let other machines use /admin and the pages.")
]
