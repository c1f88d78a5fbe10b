"""The commands that add apps, client IDs and devices."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from datetime import datetime

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from sqlalchemy import event, func, select

from messaging_service.devices import import_devices
from messaging_service.store import Store
from messaging_service.tables import devices

HEADER = "device_id,platform,profile_id,user_id,language,time_zone\n"


@pytest.fixture
def database(tmp_path):
    return ("--database", f"sqlite:///{tmp_path}/service.db")


def pem(key, private=False):
    if private:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def test_a_secret_is_printed_once_and_stored_nowhere(service_command, database, tmp_path):
    said = service_command("client-ids", "add", "--name", "n", "--type", "secret", *database)
    assert len(said["client_secret"]) >= 40
    for file in tmp_path.glob("service.db*"):
        assert said["client_secret"].encode() not in file.read_bytes()


def test_two_apps_of_one_name_are_refused(service_command, database):
    assert service_command("apps", "add", "--name", "shop", *database)["apptoken"]
    said = service_command("apps", "add", "--name", "shop", *database, expect=1)
    assert "shop" in said["error"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: pem(rsa.generate_private_key(65537, 1024)), "2048"),
        (lambda: pem(ec.generate_private_key(ec.SECP256K1())), "P-256"),
        (lambda: pem(ed25519.Ed25519PrivateKey.generate()), "RSA"),
        (lambda: pem(ec.generate_private_key(ec.SECP256R1()), private=True), "private key"),
        (lambda: b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "damaged"),
        (lambda: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "damaged"),
        (lambda: b"ssh-ed25519 AAAA", "PEM"),
        (lambda: b"", "PEM"),
    ],
    ids=["short RSA", "other curve", "Ed25519", "private", "broken SPKI", "broken X.509", "ssh", "empty"],
)
def test_a_key_that_will_not_do_is_refused_with_the_reason(service_command, database, tmp_path, make, says):
    file = tmp_path / "key.pem"
    file.write_bytes(make())
    arguments = ("--name", "n", "--type", "public-key", "--key", str(file))
    assert says in service_command("client-ids", "add", *arguments, *database, expect=1)["error"]


@pytest.mark.rule("2.2/expires_at", side="service")
@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ("2031-05-06", "2031-05-07T00:00:00+00:00"),
        ("2031-12-31", "2032-01-01T00:00:00+00:00"),
        ("2031-05-06T12:00:00Z", "2031-05-06T12:00:00+00:00"),
        ("2031-05-06T12:00:00", "2031-05-06T12:00:00+00:00"),
        ("2031-05-06T12:00:00+02:00", "2031-05-06T10:00:00+00:00"),
    ],
)
def test_a_client_id_works_to_the_end_of_a_day_or_to_a_moment(service_command, database, given, ends):
    arguments = ("--name", "n", "--type", "secret", "--expires-at", given)
    added = service_command("client-ids", "add", *arguments, *database)
    assert datetime.fromisoformat(added["expires_at"]) == datetime.fromisoformat(ends)


@pytest.mark.parametrize(
    "options",
    [
        ("--type", "public-key"),
        ("--type", "secret", "--key", "/dev/null"),
        ("--type", "public-key", "--key", "/does/not/exist"),
        ("--type", "secret", "--expires-at", "2001-01-01"),
        ("--type", "secret", "--expires-at", "soon"),
        ("--type", "secret", "--expires-at", "9999-12-31"),
    ],
    ids=str,
)
def test_a_wrong_client_id_is_refused(service_command, database, options):
    assert service_command("client-ids", "add", "--name", "n", *options, *database, expect=1)["error"]


def test_a_running_service_can_write_while_many_devices_are_imported(tmp_path):
    file = tmp_path / "devices.csv"
    file.write_text(HEADER + "".join(f"{number},android,,,,\n" for number in range(1, 12_001)))
    url = f"sqlite:///{tmp_path / 'service.db'}"
    stored = []

    def write_too(*_):
        with other.write() as connection:
            stored.append(connection.scalar(select(func.count()).select_from(devices)))

    with closing(Store(url)) as store, closing(Store(url)) as other:
        event.listen(store.engine, "checkin", write_too)
        assert import_devices(store, file).devices == 12_000
    assert stored == [5_000, 10_000, 12_000]


def test_devices_are_imported_and_replaced(service_command, database, tmp_path):
    file = tmp_path / "devices.csv"
    file.write_text(HEADER.strip() + ",tier\n1,Android,2,u,en,Europe/Dublin,gold\n3,chrome,,,,,\n")
    expected = {"devices": 2, "attributes": ["tier"]}
    assert service_command("devices", "import", str(file), *database) == expected
    assert service_command("devices", "import", str(file), *database) == expected


def test_devices_are_imported_from_a_pipe(service_command, database, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(HEADER + "1,ios,1,u,en,UTC\n",))
    writer.start()
    assert service_command("devices", "import", str(pipe), *database)["devices"] == 1
    writer.join()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("device_id,platform\n1,ios\n", "header"),
        (HEADER + "1,toaster,1,u,en,UTC\n", "line 2: platform"),
        (HEADER + "1,ios,1,u,en,UTC\n\n1,ios,1,u,en,UTC\n", "line 4: an earlier line"),
        (HEADER + "0,ios,1,u,en,UTC\n", "line 2: device_id"),
        (HEADER + "1,ios,1,u,en,Moon\n", "line 2: time_zone"),
        (HEADER + "1,ios\n", "line 2: 2 values"),
        ("", "header"),
    ],
)
def test_a_wrong_line_imports_nothing_and_is_named(service_command, database, tmp_path, text, says):
    file = tmp_path / "devices.csv"
    file.write_text(text)
    said = service_command("devices", "import", str(file), *database, expect=1)
    assert any(says in line for line in (said["error"], *said["problems"]))


def test_a_missing_file_is_said_clearly(service_command, database):
    assert "cannot be read" in service_command("devices", "import", "/no/such", *database, expect=1)["error"]


def test_a_database_that_cannot_be_opened_is_said_clearly(service_command):
    wrong = ("--database", "sqlite:////does/not/exist/s.db")
    assert "database" in service_command("apps", "add", "--name", "x", *wrong, expect=1)["error"]
