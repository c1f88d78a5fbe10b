"""The tables of the service. Times are seconds since 1970, as floating-point numbers."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

METADATA = MetaData()
# SQLite generates ids only for columns of type INTEGER, which has 64 bits there.
_Id = BigInteger().with_variant(Integer, "sqlite")

apps = Table(
    "apps",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("token", Text, nullable=False, unique=True),
    Column("time_zone", Text, nullable=False),
    Column("created_at", Float, nullable=False),
)

client_ids = Table(
    "client_ids",
    METADATA,
    Column("client_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("secret_digest", Text),
    Column("key", Text),
    Column("scopes", JSON, nullable=False),
    Column("expires_at", Float),
    Column("created_at", Float, nullable=False),
)

access_tokens = Table(
    "access_tokens",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("client_id", Text, ForeignKey("client_ids.client_id"), nullable=False),
    Column("expires_at", Float, nullable=False),
)

spent_assertions = Table(
    "spent_assertions",
    METADATA,
    Column("client_id", Text, ForeignKey("client_ids.client_id"), primary_key=True),
    Column("jti", Text, primary_key=True),
)

devices = Table(
    "devices",
    METADATA,
    Column("device_id", BigInteger, primary_key=True, autoincrement=False),
    Column("platform", Text, nullable=False),
    Column("profile_id", BigInteger),
    Column("user_id", Text),
    Column("language", Text),
    Column("time_zone", Text),
    Column("external_id", Text, index=True),
    Column("token", Text, index=True),
    Column("uuid", Text, index=True),
    Column("email", Text, index=True),
    Column("mobile_number", Text),
    Column("attributes", JSON, nullable=False),
    Index("devices_user", "user_id"),
    Index("devices_profile", "profile_id"),
)

campaigns = Table(
    "campaigns",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("app_id", _Id, ForeignKey("apps.id")),
    Column("client_id", Text, ForeignKey("client_ids.client_id")),
    Column("title", Text, nullable=False),
    Column("trigger", Integer, nullable=False),
    Column("send_type", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("warnings", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("stopped_at", Float),
    sqlite_autoincrement=True,  # never reuse an id
)

# Sendings of campaigns: a campaign has one at its scheduled time, a template one per execution.
runs = Table(
    "runs",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("campaign_id", _Id, ForeignKey("campaigns.id"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("overrides", LargeBinary),
    Column("webhook_delivery", Text),
    Column("webhook_open", Text),
    Column("due_at", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("reached", BigInteger, nullable=False, default=0),
    Column("claimed_by", Text),
    Column("unknown", JSON),
    Index("runs_due", "state", "due_at"),
    sqlite_autoincrement=True,  # never reuse an id
)

sends = Table(
    "sends",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("campaign_id", _Id, nullable=False),
    Column("run_id", _Id, nullable=False),
    Column("device_id", BigInteger, nullable=False),
    Column("platform", Text, nullable=False),
    Column("message_type", Integer),
    Column("sent_at", Float, nullable=False),
    Column("delivered_at", Float),
    Column("opened_at", Float),
    Column("removed_at", Float),  # when an inbox message leaves the inbox
    Column("error", Text),
    Index("sends_campaign", "campaign_id", "device_id"),
    Index("sends_device", "device_id"),
)

post_backs = Table(
    "post_backs",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("run_id", _Id, nullable=False),
    Column("send_id", _Id, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", Float, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("answer", Text),
    Column("claimed_by", Text),
    Column("faults", JSON),
    Index("post_backs_due", "state", "due_at"),
    Index("post_backs_run", "run_id"),
)

requests = Table(
    "requests",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("received_at", Float, nullable=False),
    Column("method", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("client_id", Text),
    Column("campaign_id", _Id),
    Column("body", JSON),
    Column("answer", JSON),
    Column("warnings", JSON, nullable=False),
    Column("took", Float, nullable=False),
    Column("fault", Text),
    Index("requests_campaign", "campaign_id"),
)

# Submitted forms of the pages, so that reloading an answer does nothing.
spent_forms = Table(
    "spent_forms",
    METADATA,
    Column("form", Text, primary_key=True),
    Column("spent_at", Float, nullable=False),
)

# The running delivery processes, and when each last reported.
workers = Table(
    "workers",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("seen_at", Float, nullable=False),
)

# The highest number issued under each name.
numbers = Table(
    "numbers",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("last", BigInteger, nullable=False),
)

faults = Table(
    "faults",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("at", JSON, nullable=False),
    Column("probability", Float),
    Column("remaining", Integer),
    Column("happened", Integer, nullable=False, default=0),
    Column("after", Boolean, nullable=False),
    Column("seconds", Float),
    Column("retry_after", Integer),
    sqlite_autoincrement=True,  # never reuse an id
)

# Calls of webhook messages (section 2.7); ``request`` holds the request to send.
webhook_calls = Table(
    "webhook_calls",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("send_id", _Id, nullable=False),
    Column("run_id", _Id, nullable=False),
    Column("request", JSON, nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", Float, nullable=False),
    Column("answer", Text),
    Column("claimed_by", Text),
    Index("webhook_calls_due", "state", "due_at"),
)

segments = Table(
    "segments",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("title", Text, nullable=False),
    Column("conditions", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    sqlite_autoincrement=True,
)

locations = Table(
    "locations",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("title", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    sqlite_autoincrement=True,
)

# Actions of devices: they entered or left a location, or triggered an event. ``person`` owns the device.
hits = Table(
    "hits",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("kind", Text, nullable=False),  # enter, exit, event
    Column("name", Text, nullable=False),  # the location's id, or the event's name
    Column("device_id", BigInteger),
    Column("person", Text, nullable=False),
    Column("value", JSON),
    Column("at", Float, nullable=False),
    Index("hits_person", "person", "kind", "name"),
)

# Campaigns that a hit triggered for a person; the limits of section 2.10 count these.
firings = Table(
    "firings",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("campaign_id", _Id, nullable=False),
    Column("run_id", _Id, nullable=False),
    Column("hit_id", _Id, nullable=False),
    Column("person", Text, nullable=False),
    Column("location_id", _Id),
    Column("at", Float, nullable=False),
    Index("firings_campaign", "campaign_id", "person"),
)

# Advances of the clock: the time before, and the number of seconds.
clock_jumps = Table(
    "clock_jumps",
    METADATA,
    Column("id", _Id, primary_key=True),
    Column("at", Float, nullable=False),
    Column("seconds", Float, nullable=False),
)
