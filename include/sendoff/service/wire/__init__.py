"""The wire format: the only code that knows the service's names and values, and which of them are unconfirmed.

``names`` is the table of what the service's document does not show. ``content`` and ``timing`` write parts of a
request, and ``requests`` the whole. ``own_request`` reads and completes requests that someone else wrote, and
``own_people`` finds the people in them. ``responses``
reads replies and post-backs. ``redaction`` hides identifiers and secrets.
"""

from sendoff.service.wire.names import UNCONFIRMED, FieldNames
from sendoff.service.wire.own_people import NOTHING, OwnPeople, without_recipients, written
from sendoff.service.wire.own_request import LARGEST_BODY, OwnBody, completed, read_own_body
from sendoff.service.wire.requests import (
    CREATE_PATH,
    EXECUTE_PATH,
    LIST_PATH,
    PostBackAddresses,
    Targeting,
    create_body,
    execute_body,
    list_body,
    request_body,
)
from sendoff.service.wire.responses import (
    PostBackBody,
    Reply,
    Unreadable,
    read_campaigns,
    read_object,
    read_post_back,
    read_reply,
)

__all__ = [
    "CREATE_PATH",
    "EXECUTE_PATH",
    "LARGEST_BODY",
    "LIST_PATH",
    "NOTHING",
    "UNCONFIRMED",
    "FieldNames",
    "OwnBody",
    "OwnPeople",
    "PostBackAddresses",
    "PostBackBody",
    "Reply",
    "Targeting",
    "Unreadable",
    "completed",
    "create_body",
    "execute_body",
    "list_body",
    "read_campaigns",
    "read_object",
    "read_own_body",
    "read_post_back",
    "read_reply",
    "request_body",
    "without_recipients",
    "written",
]
