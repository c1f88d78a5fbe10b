from .app import App as App
from .app import Launch as Launch
from .app import connect as connect
from .campaign import Campaign as Campaign
from .campaign import Period as Period
from .campaign import VerdictsOf as VerdictsOf
from .errors import AudienceError as AudienceError
from .errors import CampaignError as CampaignError
from .errors import GateError as GateError
from .errors import LateError as LateError
from .errors import NotYetError as NotYetError
from .errors import RefusedError as RefusedError
from .errors import SendoffError as SendoffError
from .errors import SettingsError as SettingsError

__all__: list[str]
__version__: str
