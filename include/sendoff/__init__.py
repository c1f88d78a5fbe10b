"""Messaging campaigns without Airflow, from a warehouse query to a reconciled report.

.. code-block:: python

    app = sendoff.connect(ledger="sqlite:///ledger.db")
    launch = app.prepare(campaign, name="lapsed_buyers", audience=frame, period="2026-11-16/2026-11-23")
    launch.send()

The names in ``__all__`` are the public library. They are imported on first use.
"""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from sendoff.app import App, Launch, connect
    from sendoff.campaign import Campaign, Period, VerdictsOf
    from sendoff.errors import (
        AudienceError,
        CampaignError,
        GateError,
        LateError,
        NotYetError,
        RefusedError,
        SendoffError,
        SettingsError,
    )

__version__ = "0.1.0"

__all__ = [
    "App",
    "AudienceError",
    "Campaign",
    "CampaignError",
    "GateError",
    "LateError",
    "Launch",
    "NotYetError",
    "Period",
    "RefusedError",
    "SendoffError",
    "SettingsError",
    "VerdictsOf",
    "connect",
]

_HOMES = {
    "App": "app",
    "Campaign": "campaign",
    "Launch": "app",
    "Period": "campaign",
    "VerdictsOf": "campaign",
    "connect": "app",
}
_NAMES: dict[str, list[str]] = {}
for _name in __all__:
    _NAMES.setdefault(_HOMES.get(_name, "errors"), []).append(_name)

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs=_NAMES)
