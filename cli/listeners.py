"""Looks whether the addresses of a deployment can be had, before anything is started for them."""

from collections.abc import Iterator
from typing import Any

from cli.config import LISTENERS, Config
from metrics.listening import why_not_free


class AddressTakenError(Exception):
    """Addresses cannot be listened on; the message names each with its setting."""


def check_listeners(config: Config) -> None:
    """Raises AddressTakenError naming every fixed address that cannot be had now."""
    if taken := list(_taken(config)):
        raise AddressTakenError("\n".join([*taken, "(does another RadixGate run? --set gives other addresses)"]))


def _taken(config: Config) -> Iterator[str]:
    for setting, address in _fixed_addresses(config):
        if reason := why_not_free(address):
            yield f"cannot listen on {address} ({setting}): {reason}"


def _fixed_addresses(config: Config) -> Iterator[tuple[str, str]]:
    for path in LISTENERS:
        address: Any = config
        for name in path:
            address = getattr(address, name)
        if address is not None and not address.endswith(":0"):
            yield ".".join(path), address
    if config.redis.url is None and config.redis.port:
        yield "redis.port", f"127.0.0.1:{config.redis.port}"
