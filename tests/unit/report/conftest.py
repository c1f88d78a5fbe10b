"""The browser of these tests."""

from ...acceptance.browser import browser  # noqa: F401
