"""How commands reach the admin API: over a channel, with a token that `radixgate serve` may have left."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.admin_client.client import AdminClient
from cli.target import Target


@contextmanager
def admin_client(target: Target | str, token: str) -> Iterator[AdminClient]:
    """Provide a client; of a target that is no more than an address, in plain text."""
    with (Target(target) if isinstance(target, str) else target).channel() as channel:
        yield AdminClient(channel, token)


def data_folder() -> Path:
    """Where `radixgate serve` keeps what belongs to this user."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "radixgate"


def admin_token_file() -> Path:
    """Where `radixgate serve` leaves the admin token that it made, for commands of the same user."""
    return data_folder() / "admin-token"
