"""Looks whether the addresses of a deployment can be had, before anything is started for them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cli.config import LISTENERS, Config
from metrics.listening import why_not_free


class AddressTakenError(Exception):
    """Addresses cannot be listened on; the message names each with its setting."""


def check_listeners(config: Config, others: Sequence[Config] = ()) -> None:
    """Raises AddressTakenError naming every fixed address that cannot be had now; of `others` those of the worker."""
    if taken := [*_taken(_fixed_addresses(config)), *(each for other in others for each in _taken(_of_worker(other)))]:
        raise AddressTakenError("\n".join([*taken, "(does another RadixGate run? --set gives other addresses)"]))


def _taken(addresses: Iterable[tuple[str, str]]) -> Iterator[str]:
    for setting, address in addresses:
        if reason := why_not_free(address):
            yield f"cannot listen on {address} ({setting}): {reason}"


def _of_worker(config: Config) -> Iterator[tuple[str, str]]:
    """Yield a worker's addresses, with its id where a setting is named: several have the same settings."""
    for setting, address in _fixed_addresses(config):
        if setting.startswith("worker."):
            yield f"{setting} of {config.worker.worker_id}", address


def _fixed_addresses(config: Config) -> Iterator[tuple[str, str]]:
    for path in LISTENERS:
        address: Any = config
        for name in path:
            address = getattr(address, name)
        if address is not None and not address.endswith(":0"):
            yield ".".join(path), address
    if config.redis.url is None and config.redis.port:
        yield "redis.port", f"127.0.0.1:{config.redis.port}"
