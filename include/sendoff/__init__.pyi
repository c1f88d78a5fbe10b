from .app import App, Launch, connect
from .campaign import Campaign, Period, VerdictsOf
from .errors import (
    AudienceError,
    CampaignError,
    GateError,
    LateError,
    NotYetError,
    RefusedError,
    SendoffError,
    SettingsError,
)

__version__: str

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
