"""Figures of the tiers below the device, as a value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierStats:
    """A snapshot of what lies below the device, and what was moved since the start."""

    host_slots: int
    host_free_slots: int
    host_cached_slots: int  # of all nodes, those being mirrored included
    settled_slots: int  # on the device, and free to leave it without loss
    flying_tokens: int  # on their way to the host
    pending: int  # copies, saves and fetches that have not ended
    moved_tokens: int  # left the device and stayed on the host
    lost_tokens: int  # left the device and were nowhere else
    host_lost_tokens: int  # left the host and were nowhere else but, maybe, in storage
    mirrored_tokens: int
    loaded_tokens: int
    mirror_failures: int
    load_failures: int
    mirror_seconds: float  # spent on copies that were done
    load_seconds: float
    stalls: int  # copies given up because they took too long
    declined_loads: int  # hits on the host that were cheaper to compute again
    sought_tokens: int  # that storage was asked for, behind what device and host have
    fetched_tokens: int
    fetch_seconds: float  # the store's own time
    save_seconds: float
    saved_pages: int
    failed_saves: int
    skipped_saves: int  # pages not saved because too many wait for it
    failed_fetches: int
    late_fetches: int
    fetch_reserved_bytes: int
