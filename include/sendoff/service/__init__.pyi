from .client import Client, message_of
from .postbacks import Addresses, PostBack, PostBackAddresses
from .tokens import ClientSecret, Credentials, JwtBearer, TokenSource, token_source_for
from .transport import LONGEST_PATIENCE, Answer, Bearer, Timeout, checked_base_url, patience
from .wire.redaction import shown_request
from .wire.requests import without_own_values

__all__ = [
    "LONGEST_PATIENCE",
    "Addresses",
    "Answer",
    "Bearer",
    "Client",
    "ClientSecret",
    "Credentials",
    "JwtBearer",
    "PostBack",
    "PostBackAddresses",
    "Timeout",
    "TokenSource",
    "checked_base_url",
    "message_of",
    "patience",
    "shown_request",
    "token_source_for",
    "without_own_values",
]
