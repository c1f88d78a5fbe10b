"""The local service of tests/contract, for tests of the service alone."""

import pytest

from ..contract.conftest import *  # noqa: F403  # its fixtures


@pytest.fixture(scope="module")
def people(request, service_process, tmp_path_factory):
    """The service with the devices of the module: its HEADER and PEOPLE."""
    file = tmp_path_factory.mktemp("people") / "people.csv"
    file.write_text("\n".join([request.module.HEADER, *request.module.PEOPLE]) + "\n")
    service_process.command("devices", "import", str(file))
    return service_process
