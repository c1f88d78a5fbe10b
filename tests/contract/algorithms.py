"""The algorithms that the service accepts for assertions, with a key for each."""

from __future__ import annotations

from pathlib import Path

KEYS = Path(__file__).parent.parent / "keys"
SHORTEST = {
    "RS256": "rsa-2048",
    "RS384": "rsa-4096",
    "RS512": "rsa-8192",
    "ES256": "ec-256",
    "ES384": "ec-384",
    "ES512": "ec-521",
}
"""The shortest accepted key for each algorithm."""
