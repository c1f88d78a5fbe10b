"""docs/reference/settings.md: environment variables and the fields of connections."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sendoff.settings import Settings
from sendoff.telemetry import exporters
from sendoff_airflow.provider import get_provider_info
from tools.reference.markdown import code, table
from tools.reference.sources import package

_HEAD = """\
# Settings

What a deployment chooses, outside of a campaign's folder: environment variables, and the fields of Airflow's
connections. Where both say something, inside Airflow the connection counts.
"""
_OF_SENDOFF = """\
## Variables of Sendoff

Read by the commands, the receiver and, where there is no connection, by Airflow's tasks. Where one ends in
`_FILE` too, that names a file with the value, as secrets have it. Both at once are refused.
"""
_OF_TELEMETRY = """\
## Variables of OpenTelemetry

Those that Sendoff itself looks at; all other `OTEL_*` variables are the SDK's own. See
[observability](observability.md).
"""
_OTHERS = {
    "SENDOFF_LOG_FORMAT": (
        "`text`",
        "`json` writes each line of the log of the receiver and the commands as one JSON object",
    ),
    "SENDOFF_WAREHOUSE_URL": (
        "none",
        "SQLAlchemy URL of the warehouse on which `sendoff preview` runs a campaign's query",
    ),
}
"""Read where they are used, not by the class of the settings: their defaults and meanings."""
_OF_TESTS = {
    "SENDOFF_TEST_POSTGRES_URL": "a PostgreSQL server, for tests and benchmarks; where it does not answer, they fail",
    "SENDOFF_TEST_AIRFLOW_DATABASE": "an empty database for Airflow in `tests/airflow`, as a URL; empty: SQLite",
    "SENDOFF_TEST_CHROMIUM": "the browser of the tests of pages",
    "SENDOFF_WRITE_PICTURES": "`1`: tests of pages write the pictures of the documentation anew",
}
_TELEMETRY = {
    "OTEL_SDK_DISABLED": "`true` turns metrics off",
    "OTEL_METRICS_EXPORTER": "`otlp`, `prometheus`, `console`, several with commas between, or `none`",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "where metrics go; it is enough to turn them on",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "the same, where the first is not set",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "`http/protobuf` unless set, or `grpc`",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "the same, where the first is not set",
    "OTEL_EXPORTER_PROMETHEUS_HOST": "the address at which Prometheus asks; `localhost` unless set",
    "OTEL_EXPORTER_PROMETHEUS_PORT": "the first port that is tried; 9464 unless set",
}
_SERVICE = {"MESSAGING_SERVICE_DATABASE": "SQLAlchemy URL of the local messaging service's own database"}
_STANDARD = ("host", "port", "login", "password", "schema")


def page() -> str:
    """Write the page."""
    of_sendoff = [[code(name), value, meaning] for name, value, meaning in variables()]
    parts = [
        _HEAD,
        _OF_SENDOFF + "\n" + table(["Variable", "Default", "Meaning"], of_sendoff),
        _OF_TELEMETRY + "\n" + _meanings({name: _TELEMETRY[name] for name in telemetry_variables()}),
        "## Variables of the local messaging service\n\n" + _meanings(_SERVICE),
        "## Variables of the tests\n\n" + _meanings(_OF_TESTS),
        "## Connections",
        *map(_connection, get_provider_info()["connection-types"]),
        _warehouse(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def variables() -> Iterator[tuple[str, str, str]]:
    """Give each variable of Sendoff with its default and its meaning."""
    prefix = Settings.model_config["env_prefix"]
    for name, field in Settings.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        yield variable, _default(field), f"{field.description}; or `{variable}_FILE`"
    for name, (value, meaning) in _OTHERS.items():
        yield name, value, meaning


def telemetry_variables() -> list[str]:
    """Give the variables of OpenTelemetry that the module names in its code, in the order in which it does."""
    tree = ast.parse(inspect.getsource(exporters))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    found = [text for text in texts if isinstance(text, str) and re.fullmatch(r"OTEL_[A-Z_]+", text)]
    return sorted(set(found), key=list(_TELEMETRY).index)


def _meanings(known: Mapping[str, str]) -> str:
    return table(["Variable", "Meaning"], ([code(name), meaning] for name, meaning in known.items()))


def _default(field: FieldInfo) -> str:
    return "none" if field.default in (PydanticUndefined, None, ()) else code(field.default)


def _connection(described: Mapping[str, Any]) -> str:
    own = described["ui-field-behaviour"]
    rows = [
        [
            code(name),
            own["relabeling"].get(name, name.capitalize()),
            "text",
            "",
            _such_as(own["placeholders"].get(name)),
        ]
        for name in _STANDARD
        if name not in own["hidden-fields"]
    ]
    rows += [
        [code(f"extra.{name}"), field["label"], *_schema(field["schema"]), field["description"]]
        for name, field in described.get("conn-fields", {}).items()
    ]
    head = f"### {described['hook-name']}: type `{described['connection-type']}`"
    hook = described["hook-class-name"].rpartition(".")[2]
    link = f"Its hook is [`{hook}`](operators.md#{hook.lower()})."
    return f"{head}\n\n{link}\n\n{table(['Field', 'Called', 'Value', 'Default', 'Meaning'], rows)}"


def _such_as(placeholder: str | None) -> str:
    return f"such as: {placeholder}" if placeholder else ""


def _schema(schema: Mapping[str, Any]) -> list[str]:
    kinds = " or ".join(kind for kind in schema["type"] if kind != "null")
    kinds = {
        "string": "text",
        "integer": "whole number",
        "object": "JSON object",
        "boolean": "`true` or `false`",
    }.get(kinds, kinds)
    if "enum" in schema:
        kinds = ", ".join(code(value) for value in schema["enum"] if value is not None)
    if "exclusiveMinimum" in schema:
        kinds += f" above {schema['exclusiveMinimum']}"
    if "minimum" in schema:
        kinds += (
            f", {schema['minimum']} {'to ' + str(schema['maximum']) if 'maximum' in schema else 'or more'}"
        )
    default = schema.get("default")
    return [kinds, "" if default is None else code(str(default).lower())]


def _warehouse() -> str:
    hooks = package()["hooks"]
    postgres = ast.literal_eval(str(hooks["connections.POSTGRES_OPTIONS"].value))
    snowflake = sorted(ast.literal_eval(str(hooks["warehouse._SNOWFLAKE_OPTIONS"].value)))
    rows = [
        ["`postgres`", "as Airflow's own", ", ".join(map(code, postgres))],
        ["`sqlite`", "`host`: the file", "none"],
        ["`duckdb`", "`host`: the file", "none; with any extra it is read through its hook"],
        ["`snowflake`", "as Airflow's own", ", ".join(map(code, ["account", "database", *snowflake]))],
        ["any other", "as Airflow's own", "those of its hook"],
    ]
    said = (
        "### Warehouses: any type\n\nThese extras are passed on where Sendoff reads the database by itself; "
        "[warehouses](warehouses.md) says when it does.\n\n"
    )
    return said + table(["Type", "Fields", "Extras"], rows)
