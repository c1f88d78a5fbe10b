"""Time-outs that detect a lost warehouse, with every driver."""

from __future__ import annotations

import os
import socket

import psutil
import pytest
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse import address_of, read

LIMITS = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")


def limits_of_connections(port: int) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the system's time-outs for this process's connections to a port, by their local address."""
    found = {}
    for each in psutil.Process().net_connections("tcp"):
        if each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port:
            with socket.socket(fileno=os.dup(each.fd)) as line:
                limits = [line.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in LIMITS]
                found[tuple(each.laddr)] = tuple(limits)
    return found


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg"])
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, (30_000, 15, 5, 3)),
        ({"tcp_user_timeout": "7000", "keepalives_idle": "4"}, (7_000, 4, 5, 3)),
    ],
)
def test_a_warehouse_that_vanishes_is_noticed_in_half_a_minute_or_as_its_address_says(
    postgres_server: str, driver: str, own: dict[str, str], expected: tuple[int, ...]
) -> None:
    url = sa.make_url(postgres_server).set(drivername=driver).update_query_dict(own)
    port = url.port or 5432
    before = limits_of_connections(port)
    with read(url.render_as_string(hide_password=False), "SELECT 1 AS device_id") as batches:
        next(batches)
        now = limits_of_connections(port)
        assert [now[line] for line in now.keys() - before.keys()] == [expected]


@pytest.mark.parametrize("url", ["postgresql+pg8000://ann@host/shop", "mysql://ann@host/shop", "duckdb:///x"])
def test_others_get_no_limits_that_they_do_not_know(url: str) -> None:
    assert address_of(url).query == {}


@pytest.mark.parametrize("behind", ["", "/9", "?9", ":9", "=9"])
def test_a_password_with_an_at_sign_is_asked_to_be_encoded_and_not_shown(behind: str) -> None:
    with pytest.raises(QueryError, match="write an @ in its password as %40") as caught:
        address_of(f"postgresql://ann:x@planted{behind}@host/shop")
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:p%40ss@host/shop?sslrootcert=/certs/a@b.crt",
        "snowflake://ann@example.com:secret@account/shop/public?warehouse=small",
        "mssql+pyodbc:///?odbc_connect=DRIVER=x;UID=ann;PWD=a@b/c@d",
        "mysql://ann@host/shop@2",
        "sqlite:////data/a@b/c@d.db",
        "duckdb:///C:/data/a@b/c@d.db",
        "bigquery://shop/sales?key_path=/keys/a@b/c@d.json",
    ],
)
def test_an_at_sign_outside_of_the_password_is_no_mistake(url: str) -> None:
    assert address_of(url).set(query={}) == sa.make_url(url).set(query={})
