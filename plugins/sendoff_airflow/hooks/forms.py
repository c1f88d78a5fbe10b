"""The connection forms of the hooks in Airflow's UI.

Airflow reads them in every process, so this module does not import the hooks.
"""

from __future__ import annotations

from typing import Any


def service_form() -> dict[str, Any]:
    """Return the form for a connection to the messaging service."""
    return {
        "connection-type": "sendoff",
        "hook-class-name": "sendoff_airflow.hooks.service.SendoffHook",
        "hook-name": "Sendoff messaging service",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "port"],
            "relabeling": {"host": "Base URL", "login": "Client ID", "password": "Client secret"},
            "placeholders": {
                "host": "https://api.example.com",
                "login": "the client ID that the service issued",
                "password": "shown once when the client ID was created; empty for the JWT bearer grant",
            },
        },
        "conn-fields": {**_grant_fields(), **_request_fields()},
    }


def _grant_fields() -> dict[str, Any]:
    return {
        "grant": {
            "label": "Grant",
            "description": "How Sendoff gets a token: client_credentials needs the client secret, jwt_bearer needs a "
            "private key.",
            "schema": {
                "type": ["string", "null"],
                "enum": ["client_credentials", "jwt_bearer"],
                "default": "client_credentials",
            },
        },
        "private_key": {
            "label": "Private key (PEM)",
            "description": "For jwt_bearer: the whole PEM text, from -----BEGIN to END-----. The service has the "
            "public key. If its certificate follows below, Sendoff warns 14 days before the certificate expires.",
            # A password field has one line and would lose the line breaks of the PEM. Airflow still masks the saved
            # value, because of the field's name.
            "schema": {"type": ["string", "null"], "format": "multiline"},
        },
        "private_key_path": {
            "label": "Private key file",
            "description": "Instead of the PEM text: the path of a file that every worker can read, such as a mounted "
            "secret.",
            "schema": {"type": ["string", "null"]},
        },
        "private_key_passphrase": {
            "label": "Passphrase of the private key",
            "description": "Only if the key is encrypted.",
            "schema": {"type": ["string", "null"], "format": "password"},
        },
        "algorithm": {
            "label": "Algorithm",
            "description": "For jwt_bearer. Empty: chosen by the type of the key.",
            "schema": {
                "type": ["string", "null"],
                "enum": ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", None],
            },
        },
        "audience": {
            "label": "Audience",
            "description": "For jwt_bearer: the aud claim of assertions. Empty: none, as in the service's document.",
            "schema": {"type": ["string", "null"]},
        },
        "token_lifetime": {
            "label": "Token lifetime (seconds)",
            "description": "How long a token should be valid, up to 86400. Empty: the service decides.",
            "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 86_400},
        },
    }


def _request_fields() -> dict[str, Any]:
    return {
        "app_token": {
            "label": "App token",
            "description": "The token of the application whose devices get the messages. It is part of each request.",
            "schema": {"type": ["string", "null"], "format": "password"},
        },
        "field_names": {
            "label": "Field names",
            "description": "Corrects names of request fields that the service's document does not state: a JSON "
            "object that maps Sendoff's name to the service's. docs/reference/unknowns.md lists them.",
            "schema": {"type": ["object", "null"]},
        },
        "timeout": {
            "label": "Time-out (seconds)",
            "description": "How long to wait for the answer to one request, at most 90. Empty: 60.",
            "schema": {"type": ["number", "null"], "minimum": 1, "maximum": 90},
        },
        "requests_per_second": {
            "label": "Requests per second",
            "description": "The rate limit for all workers of this connection together, on every machine that shares "
            "the ledger. Empty: no limit.",
            "schema": {"type": ["number", "null"], "exclusiveMinimum": 0},
        },
        "requests_at_once": {
            "label": "Requests at once",
            "description": "How many requests each worker makes at the same time, from 1 to 16. Empty: 4.",
            "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 16},
        },
        "can_list": {
            "label": "Lists its campaigns",
            "description": "Whether the service can list its campaigns. Its document does not mention this. If it can, "
            "Sendoff settles doubts by reading the list.",
            "schema": {"type": ["boolean", "null"], "default": False},
        },
        "allow_http": {
            "label": "Allow http://",
            "description": "Whether the base URL may start with http:// even if the service runs on another machine. "
            "The client secret, the tokens and people's identifiers are then sent unencrypted.",
            "schema": {"type": ["boolean", "null"], "default": False},
        },
        "verify": {
            "label": "CA bundle",
            "description": "The path of a file with the certificates to trust instead of the default ones.",
            "schema": {"type": ["string", "null"]},
        },
        "proxy": {
            "label": "Proxy",
            "description": "The proxy to use, such as http://proxy.example.com:3128. Empty: the worker's HTTPS_PROXY "
            "and NO_PROXY.",
            "schema": {"type": ["string", "null"]},
        },
    }


def ledger_form() -> dict[str, Any]:
    """Return the form for a connection to the ledger."""
    return {
        "connection-type": "sendoff_ledger",
        "hook-class-name": "sendoff_airflow.hooks.ledger.LedgerHook",
        "hook-name": "Sendoff ledger",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "port", "login", "schema"],
            "relabeling": {"password": "Database URL"},
            "placeholders": {"password": "postgresql+psycopg://user:password@host/database"},
        },
        "conn-fields": {
            "erasure_secret": {
                "label": "Erasure secret",
                "description": "The secret under which erased people are remembered, at least 32 characters. Make one "
                "with openssl rand -hex 32, and keep it as long as the ledger: it cannot be changed later.",
                "schema": {"type": ["string", "null"], "format": "password"},
            },
            "erasure_log": {
                "label": "Erasure log",
                "description": "The path of a file outside the ledger, on storage that all machines share. Each "
                "erasure adds hashes to it, which erase the people again after a backup was restored.",
                "schema": {"type": ["string", "null"]},
            },
        },
    }


def receiver_form() -> dict[str, Any]:
    """Return the form for a connection of the receiver."""
    return {
        "connection-type": "sendoff_receiver",
        "hook-class-name": "sendoff_airflow.hooks.receiver.ReceiverHook",
        "hook-name": "Sendoff post-back receiver",
        "ui-field-behaviour": {
            "hidden-fields": ["port", "login", "schema"],
            "relabeling": {"host": "Public URL", "password": "Secrets"},
            "placeholders": {
                "host": "https://events.example.com",
                "password": "32 characters or more; during a rotation two secrets, separated by a comma",
            },
        },
    }
