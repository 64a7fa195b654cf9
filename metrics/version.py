"""Which RadixGate this is."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

UNKNOWN: Final = "unknown"


def own_version() -> str:
    """Return the version that is installed."""
    try:
        return version("radixgate")
    except PackageNotFoundError:
        return UNKNOWN
