from .adbc import adbc_driver, attempt, connected
from .column_types import checked_text, is_text, spoken, value_type
from .dbapi import Cursors
from .query import Parameter, Query, named_parameters
from .reader import Source, read
from .sql_lexer import Spot, jinja_at
from .urls import address_of, is_sqlite_file

__all__ = [
    "Cursors",
    "Parameter",
    "Query",
    "Source",
    "Spot",
    "adbc_driver",
    "address_of",
    "attempt",
    "checked_text",
    "connected",
    "is_sqlite_file",
    "is_text",
    "jinja_at",
    "named_parameters",
    "read",
    "spoken",
    "value_type",
]
