from .adbc import adbc_driver, attempt, open_connection
from .column_types import QUERY, Wording, checked_text, is_number, is_text, sql_type_name, value_type
from .dbapi import Cursors
from .drivers import driver_of_type
from .frames import Rows, audience_source, csv_header, quoting_problem, table_of, wrong_csv_row
from .query import Parameter, Query, named_parameters, refusal, returned_columns
from .reader import Source, address_of, is_reading, read
from .sql_lexer import Spot, code_of, jinja_at, usual_dialect
from .urls import LIBPQ_TIMEOUTS, Fields, is_sqlite_file
from .writer import writing_engine

__all__ = [
    "LIBPQ_TIMEOUTS",
    "QUERY",
    "Cursors",
    "Fields",
    "Parameter",
    "Query",
    "Rows",
    "Source",
    "Spot",
    "Wording",
    "adbc_driver",
    "address_of",
    "attempt",
    "audience_source",
    "checked_text",
    "code_of",
    "csv_header",
    "driver_of_type",
    "is_number",
    "is_reading",
    "is_sqlite_file",
    "is_text",
    "jinja_at",
    "named_parameters",
    "open_connection",
    "quoting_problem",
    "read",
    "refusal",
    "returned_columns",
    "sql_type_name",
    "table_of",
    "usual_dialect",
    "value_type",
    "writing_engine",
    "wrong_csv_row",
]
