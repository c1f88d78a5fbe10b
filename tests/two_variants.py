"""A campaign with two variants, an accepted launch of it, and a shop where people ordered."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation, load_campaign
from sendoff.ledger import Ledger
from sendoff.states import Accepted

from .factories import KEY, make_launch, make_warehouse, send

CAMPAIGN = """
title: Spring
warehouse: shop
channels:
  email: {from_address: 1, subject: Hello, text: It is spring}
variants:
  blue: {percent: 50}
  red:
    percent: 50
    channels:
      email: {from_address: 1, subject: Spring, text: It is spring}
"""


def write_campaign(folder: Path) -> Path:
    """Write the campaign's files to a new folder, and return it."""
    folder.mkdir()
    (folder / "campaign.yaml").write_text(CAMPAIGN)
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    (folder / "outcome.sql").write_text("SELECT device_id FROM orders WHERE :period_start <= :sent_at")
    return folder


def launch(ledger: Ledger, campaign: Path, *, first: int = 1, held_out: int = 0) -> None:
    """Send to a hundred devices, the first fifty with the variant blue; the devices after these are held out."""
    held = {"holdout": integers(range(first + 100, first + 100 + held_out))} if held_out else {}
    make_launch(
        ledger,
        range(first, first + 100 + held_out),
        segments=[
            Segment(integers(range(first, first + 50)), Variation(variant="blue")),
            Segment(integers(range(first + 50, first + 100)), Variation(variant="red")),
        ],
        campaign=load_campaign(campaign).campaign,
        suppressed=held,
    )
    send(ledger, KEY, Accepted(200, 17), Accepted(200, 17))


def open_shop(file: Path, buyers: Iterable[int]) -> str:
    """Create a warehouse with orders from these devices, and return its URL."""
    return make_warehouse(file, "orders (device_id INTEGER)", [(device,) for device in buyers])
