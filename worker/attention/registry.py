"""The attention backends by the names that a configuration uses, and which of them a device can have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from worker.attention import flashinfer_backend, native_backend
from worker.attention.backend import AttentionBackend
from worker.attention.cascade_backend import CascadeBackend
from worker.attention.flashinfer_backend import FlashInferBackend
from worker.attention.native_backend import NativeBackend
from worker.attention.torch_backend import TorchBackend

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class _Entry:
    make: Callable[[torch.device], AttentionBackend]
    why_unavailable: Callable[[torch.device], str | None]  # None: it can be made


def _never(device: torch.device) -> str | None:
    return None


# In order of preference: `auto` takes the first one that there is. The last ones run anywhere.
_BACKENDS: Final = {
    "flashinfer": _Entry(FlashInferBackend, flashinfer_backend.why_unavailable),
    "native": _Entry(NativeBackend, native_backend.why_unavailable),
    "cascade": _Entry(CascadeBackend, _never),
    "torch": _Entry(TorchBackend, _never),
}


def backend_names() -> tuple[str, ...]:
    """Return every name there is, whatever this machine has."""
    return tuple(_BACKENDS)


def available_backends(device: torch.device) -> tuple[str, ...]:
    """Return the names that can be made on `device`, the one that `auto` stands for first."""
    return tuple(name for name, entry in _BACKENDS.items() if entry.why_unavailable(device) is None)


def backend_by_name(name: str, device: torch.device) -> AttentionBackend:
    """Raise ValueError for an unknown name, and for a backend that this device or machine cannot have."""
    there = available_backends(device)
    chosen = there[0] if name == AUTO else name
    if chosen not in _BACKENDS:
        raise ValueError(f"unknown attention backend {name!r}; known: {', '.join((AUTO, *_BACKENDS))}")
    entry = _BACKENDS[chosen]
    reason = entry.why_unavailable(device)
    if reason is not None:
        raise ValueError(f"attention backend {name!r} is not available: {reason}; there is: {', '.join(there)}")
    return entry.make(device)
