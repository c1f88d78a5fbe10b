from .client import Client, message_of
from .credentials import ClientSecret, Credentials, JwtBearer
from .opt_out import OPT_OUT_PATH, OptOut, OptOutSigner, check_identifiers
from .postbacks import MATCHED_BY, PostBack, PostBackSigner
from .tokens import TokenSource, token_source_for
from .transport import (
    MAX_RETRY_AFTER,
    Answer,
    Bearer,
    Timeout,
    checked_base_url,
    retry_after_seconds,
    service_session,
)
from .wire.redaction import redacted_own_request, redacted_request
from .wire.requests import mask_template_values

__all__ = [
    "MATCHED_BY",
    "MAX_RETRY_AFTER",
    "OPT_OUT_PATH",
    "Answer",
    "Bearer",
    "Client",
    "ClientSecret",
    "Credentials",
    "JwtBearer",
    "OptOut",
    "OptOutSigner",
    "PostBack",
    "PostBackSigner",
    "Timeout",
    "TokenSource",
    "check_identifiers",
    "checked_base_url",
    "mask_template_values",
    "message_of",
    "redacted_own_request",
    "redacted_request",
    "retry_after_seconds",
    "service_session",
    "token_source_for",
]
