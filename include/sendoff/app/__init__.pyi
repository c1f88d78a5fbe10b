from .app import App as App
from .app import connect as connect
from .connections import user_name as user_name
from .launch import Launch as Launch
from .results import LaunchPreview as LaunchPreview
from .results import Report as Report
from .results import Suppressions as Suppressions
from .results import Verdicts as Verdicts
