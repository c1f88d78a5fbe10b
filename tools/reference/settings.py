"""Generate docs/reference/settings.md: environment variables and the fields of connections."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import griffe
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sendoff.settings import Settings
from sendoff.telemetry import exporters
from sendoff_airflow.hooks.settings import SOURCES
from sendoff_airflow.provider import get_provider_info
from tools.reference.markdown import code, table
from tools.reference.sources import package

_HEAD = """\
# Settings

The settings of a deployment: environment variables, and the fields of Airflow's connections. Inside Airflow, a
connection overrides an environment variable. Outside Airflow, [one place](#from-airflows-connections) is enough too.
"""
_OF_SENDOFF = """\
## Variables of Sendoff

The commands and the receiver read these variables, and so do Airflow's tasks if there is no connection.
[`sendoff.connect`](python.md) reads those that it is not given as arguments; Airflow has its own connections to the
service and to warehouses. A variable that ends in `_FILE` is the path of a file with the value, as secrets are often
provided. Setting both is an error.
"""
_FROM_AIRFLOW = """\
## From Airflow's connections

With `SENDOFF_SETTINGS_FROM=airflow`, the receiver, the commands and `sendoff.connect` also read Airflow's connections,
so that no value is written twice. Airflow must be installed where they run. It looks in the same places as for its own
processes: its secrets backend, `AIRFLOW_CONN_*` variables, then its database. So this process needs Airflow's
configuration.

- A setting that only one side has is used. If both sides have it with different values, the command stops and names the
  variable and the connection.
- If Airflow cannot look up a connection, the command stops. It does not fall back to the variables.
- `sendoff send` and `sendoff send-test` use the connection to the service that the campaign names. But if a variable
  has any part of an account, such as `SENDOFF_SERVICE_URL` or `SENDOFF_APP_TOKEN`, the service is that of
  `sendoff_default`. `SENDOFF_CONNECTION` names another one.
- A campaign with a `warehouse` of its own reads the connection with that name, as its DAG does. A warehouse counts only
  if Sendoff reads [its type](#warehouses-any-type) itself, without Airflow's hook.
- Each command looks up only the connections that it needs. The receiver reads them once, when it starts.
- Importing Airflow takes each command some seconds. That is why Sendoff does it only if you ask for it.
"""
_OF_TELEMETRY = """\
## Variables of OpenTelemetry

Sendoff itself reads these variables. The SDK reads all other `OTEL_*` variables. See
[observability](observability.md).
"""
_OTHERS = {
    "SENDOFF_SETTINGS_FROM": (
        "none",
        "`airflow`: the receiver and the commands also read [Airflow's connections](#from-airflows-connections)",
    ),
    "SENDOFF_LOG_FORMAT": (
        "`text`",
        "`json` writes each line of the log of the receiver and the commands as one JSON object",
    ),
}
"""Defaults and meanings of the variables that are not fields of the settings class."""
_OF_TESTS = {
    "SENDOFF_TEST_POSTGRES_URL": "URL of a PostgreSQL server for tests and benchmarks; they fail if it does not answer",
    "SENDOFF_TEST_AIRFLOW_DATABASE": "URL of an empty database for Airflow in `tests/airflow`; SQLite if not set",
    "SENDOFF_TEST_AIRFLOW_CHART": "folder of Airflow's Helm chart, to check `docker/kubernetes/values.yaml` against it",
    "SENDOFF_TEST_CHROMIUM": "path of the browser for the tests of pages",
    "SENDOFF_WRITE_PICTURES": "`1`: tests of pages update the pictures of the documentation",
}
_TELEMETRY = {
    "OTEL_SDK_DISABLED": "`true` turns metrics and traces off",
    "OTEL_METRICS_EXPORTER": "`otlp`, `prometheus`, `console`, several separated by commas, or `none`",
    "OTEL_TRACES_EXPORTER": "the same for traces, without `prometheus`; commands have traces, the receiver has none",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "URL to send metrics to; setting it turns metrics on",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "URL to send traces to; setting it turns traces on",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "the same for both, if the variable of one is not set",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "`http/protobuf` (default) or `grpc`",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "the same for traces",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "the same for both, if the variable of one is not set",
    "OTEL_EXPORTER_PROMETHEUS_HOST": "address for Prometheus to scrape; `localhost` by default",
    "OTEL_EXPORTER_PROMETHEUS_PORT": "first port to try; 9464 by default",
}
_SERVICE = {"MESSAGING_SERVICE_DATABASE": "SQLAlchemy URL of the local messaging service's own database"}
_STANDARD = ("host", "port", "login", "password", "schema")


def page() -> str:
    """Write the page."""
    of_sendoff = [[code(name), value, meaning] for name, value, meaning in variables()]
    parts = [
        _HEAD,
        _OF_SENDOFF + "\n" + table(["Variable", "Default", "Meaning"], of_sendoff),
        _FROM_AIRFLOW + "\n" + _sources(),
        _OF_TELEMETRY + "\n" + _meanings({name: _TELEMETRY[name] for name in telemetry_variables()}),
        "## Variables of the local messaging service\n\n" + _meanings(_SERVICE),
        "## Variables of the tests\n\n" + _meanings(_OF_TESTS),
        "## Connections",
        *map(_connection, get_provider_info()["connection-types"]),
        _warehouse(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def variables() -> Iterator[tuple[str, str, str]]:
    """Yield the name, default and meaning of each variable of Sendoff."""
    prefix = Settings.model_config["env_prefix"]
    for name, field in Settings.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        yield variable, _default(field), f"{field.description}; or `{variable}_FILE`"
    for name, (value, meaning) in _OTHERS.items():
        yield name, value, meaning


def _sources() -> str:
    rows = [
        [code(f"SENDOFF_{name.upper()}"), code(connection), field if " " in field else code(field)]
        for connection, fields in SOURCES.items()
        for name, field in fields.items()
    ]
    return table(["Variable", "Connection", "Field"], rows)


def telemetry_variables() -> list[str]:
    """Return the variables of OpenTelemetry that appear in the module's code, in the order of ``_TELEMETRY``."""
    tree = ast.parse(inspect.getsource(exporters))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    found = [text for text in texts if isinstance(text, str) and re.fullmatch(r"OTEL_[A-Z_]+", text)]
    return sorted(set(found), key=list(_TELEMETRY).index)


def _meanings(known: Mapping[str, str]) -> str:
    return table(["Variable", "Meaning"], ([code(name), meaning] for name, meaning in known.items()))


def _default(field: FieldInfo) -> str:
    if field.default in (PydanticUndefined, None, (), {}):
        return "none"
    return code(json.dumps(field.default) if isinstance(field.default, bool) else field.default)


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
    return f"{head}\n\n{link}\n\n{table(['Field', 'Label', 'Value', 'Default', 'Meaning'], rows)}"


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
    def named(module: griffe.Module, constant: str) -> list[str]:
        return [*ast.literal_eval(str(module[constant].value))]

    databases = package("sendoff")["warehouse.databases"]
    mysql = named(databases, "mysql.OPTIONS")
    extras = {
        "`postgres`": named(package(), "hooks.connections.POSTGRES_OPTIONS"),
        "`snowflake`": ["account", "database", *sorted(named(databases, "snowflake.CONNECTION_OPTIONS"))],
        "`clickhouse`": [*named(databases, "clickhouse.OPTIONS"), "session_settings", "client_kwargs"],
        "`mysql`": ["ssl", *mysql],
        "`mariadb`": mysql,
        "`trino`": ["catalog", "protocol", *named(databases, "trino.OPTIONS")[1:]],
        "`redshift`": ["ssl", *named(databases, "redshift.EXTRAS")],
        "`databricks`": named(databases, "databricks.EXTRAS"),
        "`google_cloud_platform`, `gcpbigquery`": named(databases, "bigquery.EXTRAS"),
    }
    rows = [[kind, "as in Airflow", ", ".join(map(code, names))] for kind, names in extras.items()]
    rows[1:1] = [
        ["`sqlite`", "`host`: the file", "none"],
        ["`duckdb`", "`host`: the file", "none; with any extra, Sendoff uses the hook"],
    ]
    rows.append(["any other", "as in Airflow", "those of its hook"])
    said = (
        "### Warehouses: any type\n\nIf Sendoff reads the database itself, it passes these extras on. See "
        "[warehouses](warehouses.md).\n\n"
    )
    return said + table(["Type", "Fields", "Extras"], rows)
