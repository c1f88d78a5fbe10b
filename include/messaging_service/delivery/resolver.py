"""A resolver that accepts loopback addresses only. It checks the address that is then called, so it cannot change."""

from __future__ import annotations

import ipaddress
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from messaging_service.delivery.loopback import NotOnThisMachineError


def resolver(anywhere: bool) -> AbstractResolver:
    """Return a resolver; unless ``anywhere``, it raises NotOnThisMachineError for names of other machines."""
    return ThreadedResolver() if anywhere else _Loopback()


class _Loopback(AbstractResolver):
    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        addresses = await self._resolver.resolve(host, port, family)
        if not all(ipaddress.ip_address(item["host"]).is_loopback for item in addresses):
            raise NotOnThisMachineError
        return addresses

    async def close(self) -> None:
        await self._resolver.close()
