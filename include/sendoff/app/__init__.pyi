from .app import App, connect
from .connections import user_name
from .launch import Launch
from .results import LaunchPreview, Report, Suppressions, Verdicts
from .service import service_connection

__all__ = [
    "App",
    "Launch",
    "LaunchPreview",
    "Report",
    "Suppressions",
    "Verdicts",
    "connect",
    "service_connection",
    "user_name",
]
