"""How long a prefix takes to come from somewhere, against computing it. Arithmetic from speeds that are given."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What is known of a machine; None: not known, and nothing is said of it."""

    prefill_tokens_per_s: float | None = None
    copy_bytes_per_s: float | None = None  # host to device
    storage_bytes_per_s: float | None = None  # storage to host


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One way for the KV of a prefix to get onto the device."""

    way: str
    seconds: float
    tokens_per_s: float
    of_prefill: float | None  # its time divided by that of computing; None where that is unknown


def arrivals(speeds: Speeds, bytes_per_token: int, tokens: int) -> tuple[Arrival, ...]:
    """Return the ways that `speeds` says something about, for a prefix of `tokens` tokens."""
    rates: list[tuple[str, float]] = []
    computing = speeds.prefill_tokens_per_s
    if computing is not None:
        rates.append(("compute", computing))
    copying = None if speeds.copy_bytes_per_s is None else speeds.copy_bytes_per_s / bytes_per_token
    if copying is not None:
        rates.append(("from the host", copying))
    if speeds.storage_bytes_per_s is not None:
        reading = speeds.storage_bytes_per_s / bytes_per_token
        # One behind the other: the load back begins when the prefetch has ended.
        rates.append(("from storage", reading if copying is None else 1 / (1 / reading + 1 / copying)))
    return tuple(
        Arrival(
            way=way,
            seconds=tokens / rate,
            tokens_per_s=rate,
            of_prefill=None if computing is None else computing / rate,
        )
        for way, rate in rates
    )
