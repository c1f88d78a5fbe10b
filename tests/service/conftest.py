"""The local service of tests/contract, for the tests of the service alone."""

from ..contract.conftest import *  # noqa: F403  # its fixtures
