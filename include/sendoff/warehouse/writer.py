"""Open a warehouse to write to it."""

from __future__ import annotations

from contextlib import ExitStack

import sqlalchemy as sa

from sendoff.warehouse.adbc import attempt
from sendoff.warehouse.databases import mysql
from sendoff.warehouse.query import Query


def writing_engine(query: Query, stack: ExitStack) -> sa.Engine:
    """Return an engine that may write to the warehouse of a query; closing the stack disposes of it."""
    url, options = query.url, {}
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    elif url.get_backend_name() in ("mysql", "mariadb") and mysql.accepts(url):
        options = mysql.driver_options(url)  # as for reading queries
        url = url.set(drivername=f"{url.get_backend_name()}+pymysql", query={})
    engine = attempt(lambda: sa.create_engine(url, connect_args=options, hide_parameters=True), query)
    stack.callback(engine.dispose)
    return engine
