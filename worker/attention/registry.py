"""The attention backends by the names that a configuration uses."""

from collections.abc import Callable

import torch

from worker.attention.backend import AttentionBackend
from worker.attention.torch_backend import TorchBackend

_BACKENDS: dict[str, Callable[[torch.device], AttentionBackend]] = {
    "torch": TorchBackend,
}


def backend_names() -> tuple[str, ...]:
    return tuple(sorted(_BACKENDS))


def backend_by_name(name: str, device: torch.device) -> AttentionBackend:
    """Raise ValueError, naming the known ones, for an unknown name."""
    try:
        return _BACKENDS[name](device)
    except KeyError:
        raise ValueError(f"unknown attention backend {name!r}; known: {', '.join(backend_names())}") from None
