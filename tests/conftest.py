"""Fixtures for tests of all folders: database servers, free ports, and a summary of the tests left out."""

from __future__ import annotations

import gc
import gzip
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from .clickhouse_server import clickhouse_server
from .commands import clear_settings, run_command
from .compiled_statements import share_compiled_statements
from .databases import connected, new_database
from .mariadb_server import is_installed as mariadb_is_installed
from .mariadb_server import mariadb_server
from .ports import reserved_port

if TYPE_CHECKING:
    from sendoff.ledger import Ledger

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs like this
    signal.signal(signal.SIGINT, signal.default_int_handler)

share_compiled_statements()  # before a module imports the function that it replaces

POSTGRES_VARIABLE = "SENDOFF_TEST_POSTGRES_URL"
LOCAL_POSTGRES = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
WANTS = "needs "


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The URL of a PostgreSQL server. Skip the test if none was configured and no local one answers."""
    named = os.environ.get(POSTGRES_VARIABLE)
    url = make_url(named or LOCAL_POSTGRES).set(drivername="postgresql+psycopg")
    try:
        with connected(url.render_as_string(hide_password=False)) as engine, engine.connect() as db:
            db.execute(text("SELECT 1"))
    except OperationalError:
        where = url.render_as_string(hide_password=True)
        if named:  # a configured server means that these tests must run
            pytest.fail(
                f"PostgreSQL does not answer at {where}, which {POSTGRES_VARIABLE} names", pytrace=False
            )
        pytest.skip(
            f"{WANTS}PostgreSQL: none answers at {where}; start one, or set {POSTGRES_VARIABLE} to its URL"
        )
    return url.render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a new, empty database (postgresql+psycopg://...), dropped after the module's tests."""
    with new_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def new_postgres_database(postgres_server: str) -> Iterator[str]:
    """The URL of a new, empty database, dropped after all tests of this process."""
    with new_database(postgres_server) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a database for one test only, dropped after it."""
    with new_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def clickhouse_url() -> Iterator[str]:
    """The URL of a ClickHouse server, empty at first. Skip the test if its client or its engine is missing."""
    for package in ("clickhouse_connect", "chdb"):
        if find_spec(package) is None:
            pytest.skip(
                f"{WANTS}ClickHouse: pip install -c constraints.txt clickhouse-connect chdb-core-lite"
            )
    with clickhouse_server() as port:
        yield f"clickhouse://ann:pa55word@127.0.0.1:{port}/default"


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """The URL of an empty database on a MariaDB server. Skip the test if the server or its driver is missing."""
    if not mariadb_is_installed() or find_spec("pymysql") is None:
        pytest.skip(
            f"{WANTS}MariaDB: apt-get install mariadb-server-core, and pip install -c constraints.txt pymysql"
        )
    with mariadb_server() as url:
        yield url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables of the ledger; copying it is faster than migrating."""
    from sendoff.ledger import Ledger

    file = tmp_path_factory.mktemp("migrated") / "ledger.db"
    ledger = Ledger(f"sqlite:///{file}")
    ledger.migrate()
    ledger.close()  # closing the last connection writes everything into the file
    return file


@pytest.fixture
def migrated_url(migrated_file: Path, tmp_path: Path) -> str:
    """The URL of an empty, migrated ledger for one test: ``ledger.db`` in its temporary folder."""
    return f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'ledger.db')}"


@pytest.fixture
def ledger(migrated_url: str) -> Iterator[Ledger]:
    """An empty, migrated ledger for one test."""
    from sendoff.ledger import Ledger

    with closing(Ledger(migrated_url)) as ledger:
        yield ledger


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def sendoff() -> Command:
    """Runs the command ``sendoff`` in this process, without any settings, and returns its output."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            clear_settings(patch)
            return run_command(patch, *arguments)

    return run


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the environment for one test."""
    clear_settings(monkeypatch)


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of tools/benchmarks by its name."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tools/benchmarks")
    return import_module


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port of the loopback address for this test only; nothing else listens there."""
    with reserved_port() as port:
        yield port


PROOF_FOLDERS = [Path(__file__).with_name(name) for name in ("acceptance", "repository", "service")]


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of some folders for `make proof`."""
    if any(folder in item.path.parents for folder in PROOF_FOLDERS):
        item.add_marker("proof")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect without the garbage collector, which takes a quarter of that time and finds little."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # later collections need not look at what was imported
        gc.enable()


def pytest_unconfigure() -> None:
    """Undo the freezing of ``pytest_collection``, so that compiled modules report no leaks at the end."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a marker with an unknown rule, or with a wrong side."""
    sections = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text())["sections"]
    known = {f"{number}/{name}" for number, section in sections.items() for name in section["rules"]}
    for item in items:
        for marker in item.iter_markers("rule"):
            unknown = [name for name in marker.args if name not in known]
            if unknown or not marker.args or marker.kwargs not in ({"side": "service"}, {"side": "client"}):
                raise pytest.UsageError(
                    f"{item.nodeid}: rule{marker.args} on side {marker.kwargs.get('side')!r}: "
                    "use rules of tests/rules.yaml, and side='service' or side='client'"
                )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report at the end which tests were left out because a server is missing."""
    reasons = (report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()))
    wanted = Counter(
        reason.split(WANTS, 1)[1].split(":")[0] for reason in reasons if f"Skipped: {WANTS}" in reason
    )
    for server, count in wanted.items():
        terminalreporter.write_line(
            f"LEFT OUT because {server} is missing: {count} tests", yellow=True, bold=True
        )


class Collector:
    """A collector over OTLP/HTTP, which stores the decoded metrics and spans."""

    def __init__(self, address: str) -> None:
        self.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": address}
        self._received: list[Any] = []
        self.spans: list[Any] = []

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            return
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        self._received += ExportMetricsServiceRequest.FromString(body).resource_metrics

    def names(self) -> set[str]:
        return {name for _, name, _ in self._points()}

    def total(self, name: str, **attributes: str) -> float:
        """Return the sum of the latest value from each process; for a histogram, its sum."""
        newest: dict[Any, float] = {}
        for resource, found, point in self._points():
            of = {each.key: each.value.string_value for each in point.attributes}
            if found == name and attributes.items() <= of.items():
                is_number = "NumberDataPoint" in type(point).__name__
                value = (point.as_int or point.as_double) if is_number else point.sum
                newest[resource["service.instance.id"], tuple(sorted(of.items()))] = value
        return sum(newest.values())

    def resources(self) -> list[dict[str, str]]:
        return [_attributes(each.resource) for each in self._received]

    def _points(self) -> Iterator[tuple[dict[str, str], str, Any]]:
        for each in self._received:
            for scope in each.scope_metrics:
                for metric in scope.metrics:
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        yield _attributes(each.resource), metric.name, point


def _attributes(resource: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in resource.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on the loopback address; ``environment`` configures a process to send metrics and traces to it."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_packed = self.headers.get("Content-Encoding") == "gzip"
            collector.take(self.path, gzip.decompress(body) if is_packed else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
