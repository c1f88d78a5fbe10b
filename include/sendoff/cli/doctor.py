"""The command that checks whether a machine can send, before a campaign does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import requests
import typer
from rich.console import Console
from rich.text import Text
from urllib3.exceptions import HTTPError

from sendoff.cli.shared import AsJson, LedgerUrl, WarehouseUrls, app, opened, print_json, warehouse_urls
from sendoff.errors import SendoffError, SettingsError, UnreachableError
from sendoff.settings import WAREHOUSE, connection_for, environment_settings, load_settings

if TYPE_CHECKING:
    from sendoff.campaign import Campaign

_STYLES = {"ok": "green", "unclear": "yellow", "wrong": "bold red"}
_TIMEOUT = 15  # seconds for each answer of the receiver


@dataclass(frozen=True, slots=True)
class _Finding:
    """A part of the deployment, and whether it works."""

    part: str
    state: Literal["ok", "unclear", "wrong"]
    text: str


class _UnclearError(SendoffError):
    """This machine cannot find out whether a part works."""


@app.command()
def doctor(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER",
            help="Campaign folders, or folders that contain some: also check the connections that they name",
            exists=True,
            file_okay=False,
            show_default=False,
        ),
    ] = None,
    warehouses: WarehouseUrls = None,
    as_json: AsJson = False,
    ledger_url: LedgerUrl = None,
) -> None:
    """Check whether this machine can send: its ledger, service, receiver and warehouses.

    It asks the service for a token, the warehouse for one row, and the receiver's public address whether it has the
    same secrets as this machine. It sends no message and stores nothing. If a variable has a wrong value, it checks
    nothing else.

    *unclear*: this machine cannot reach the receiver. Check from outside whether the service can. The exit code is 1
    if something is wrong.
    """
    from sendoff.campaign import load_campaigns

    campaigns = [each.campaign for each in load_campaigns(folders or ())]
    found = [_examined("settings", _settings)]  # all other parts need them
    if found[0].state == "ok":
        found = [_examined(part, check) for part, check in _checks(campaigns, warehouses or [], ledger_url)]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        console = Console(soft_wrap=True, highlight=False)
        for each in found:
            state = (f"{each.state:<9}", _STYLES[each.state])
            console.print(Text.assemble(state, f"{each.part}: {each.text}"))
    if any(each.state == "wrong" for each in found):
        raise typer.Exit(1)


def _examined(part: str, check: Callable[[], str]) -> _Finding:
    try:
        return _Finding(part, "ok", check())
    except _UnclearError as error:
        return _Finding(part, "unclear", str(error))
    except SendoffError as error:
        return _Finding(part, "wrong", str(error))


def _checks(
    campaigns: Sequence[Campaign], warehouses: list[str], ledger_url: str | None
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield each part of the deployment, and a function that checks it and returns what it found.

    The function raises a SendoffError if the part does not work.
    """
    yield "ledger", partial(_ledger, ledger_url)
    connections: list[str | None] = [*sorted({each.connection for each in campaigns})] or [None]
    for name in connections:
        yield f"service {name}" if name else "service", partial(_service, name)
    yield "receiver", _receiver
    url_of = warehouse_urls(warehouses, campaigns)
    names = {name for each in campaigns for name in (each.warehouse, *each.other_warehouses)}
    for name in sorted(names) or [WAREHOUSE]:
        yield f"warehouse {name}", partial(_warehouse, name, url_of)


def _settings() -> str:
    environment_settings()
    return "every variable has a valid value"


def _ledger(url: str | None) -> str:
    with opened(url) as ledger:
        ledger.check()
        ledger.launches.page([], limit=1)
        return "; but ".join([f"{ledger.name} can be read and written", *map(str, ledger.pauses.all())])


def _service(name: str | None) -> str:
    from sendoff.app.service import place_of, service_connection

    connection = connection_for(name) if name else None
    settings = load_settings(**{"connection": connection} if connection else {})
    client = service_connection(settings).client
    try:
        warnings = client.log_in()
    except UnreachableError as error:
        raise SettingsError(
            f"{error}; check the base URL, the proxy and the CA bundle, and whether this machine can connect to it"
        ) from None
    except SendoffError as error:
        raise SettingsError(f"{place_of(settings)}: {error}") from None
    return "; but ".join([f"{settings.service_url} issued a token", *warnings])


def _receiver() -> str:
    """Check that the public address belongs to a receiver with the secrets of this machine.

    Such a receiver answers 200 to the address of an opt-out only if that was signed under its secrets. To open it
    changes nothing.
    """
    from sendoff.service import OptOut, OptOutSigner, PostBackSigner

    signer = OptOutSigner.of(PostBackSigner.from_settings(load_settings(["public_url", "post_back_secrets"])))
    signed = signer.sign(OptOut("0" * 32, "account", "device_id", "0"))
    statuses = []
    for address in (signed, f"{signed[:-8]}{'A' * 8}"):
        try:
            with requests.get(address, timeout=_TIMEOUT, allow_redirects=False, stream=True) as answer:
                statuses.append(answer.status_code)
        except (requests.Timeout, requests.ConnectionError) as error:  # its text would quote the address
            if isinstance(error, requests.exceptions.SSLError):
                raise SettingsError(
                    f"{signer.public_url} has no certificate that this machine trusts"
                ) from None
            raise _UnclearError(
                f"{signer.public_url} does not answer this machine ({type(error).__name__}). The service must reach it"
            ) from None
        except (requests.RequestException, HTTPError, UnicodeError):
            raise SettingsError(f"{signer.public_url} is no address that can be called") from None
    match statuses:
        case [200, 404]:
            return f"{signer.public_url} is a receiver with the same secrets"
        case [404, 404]:
            raise SettingsError(
                f"{signer.public_url} answers 404 to an address signed here, so post-backs would be refused. Either no "
                "receiver answers there, or it needs the same SENDOFF_POST_BACK_SECRETS and SENDOFF_PUBLIC_URL"
            )
    raise SettingsError(
        f"{signer.public_url} answers {statuses[0]} to an address signed here and {statuses[1]} to a forged one, "
        "instead of 200 and 404. Check what answers there, and whether its proxy passes all paths on to a receiver"
    )


def _warehouse(name: str, url_of: Callable[[str], str]) -> str:
    from sendoff.warehouse import read

    with read(url_of(name), "SELECT 1 AS answer") as batches:
        for _ in batches:
            pass
    return "it answered a query"
