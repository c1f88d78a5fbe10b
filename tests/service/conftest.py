"""The local service of tests/contract, for tests of the service alone."""

from ..contract.conftest import *  # noqa: F403  # its fixtures
