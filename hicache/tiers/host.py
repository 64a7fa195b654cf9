"""The host tier: KV in main memory, pinned where a CUDA device copies from it. Knows shapes, no tokens and no tree."""

import contextlib
import resource
import weakref
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from hicache.errors import HicacheError
from hicache.keys import Int32Array
from hicache.tiers.layout import LayerShape, PoolLayout
from hicache.tiers.planes import Pages, Planes

Pin = Literal["auto", "require", "never"]

# Pins the memory of a tensor until it is freed. Returns "" or why it could not.
PinMemory = Callable[[Tensor], str]


class HostPoolError(HicacheError):
    """The host pool cannot be had as configured; the message names its size, and the limit to raise."""


class HostPool:
    """KV of `num_slots` tokens in main memory, in the layout of the device pool (`PoolLayout`), zeroed and touched.

    Layer first, like the device pool, and not page first: a copy between equal layouts moves whole runs, plane by
    plane, while one that turns pages around moves a few hundred bytes at a time. Measured (`benchmarks.copies`): 12
    against 8 GB/s for long runs, 9 against 8 for runs of 64 slots; scattered slots are the exception, 3 against 4.
    Storage wants pages in one piece and gets them packed on its own thread, where nobody waits.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_slots: int,
        dtype: torch.dtype,
        *,
        pin: Pin,
        available_bytes: int | None = None,
        pin_memory: PinMemory | None = None,
    ) -> None:
        """`available_bytes`: what the machine, or its control group, has left; None if nobody knows.

        Raises HostPoolError if the memory is not there, or if `pin` is "require" and it cannot be pinned.
        """
        layout = PoolLayout(layers, dtype)
        self.num_slots = num_slots
        self.num_bytes = num_slots * layout.bytes_per_token
        if available_bytes is not None and self.num_bytes > available_bytes:
            # Asked before it is touched: the kernel hands out more than it has, and kills who uses it.
            raise HostPoolError(f"{self._size()}, and only {available_bytes} bytes are available: {_REMEDY}")
        try:
            self.planes = Planes(layout, num_slots, torch.device("cpu"))
        except MemoryError as error:
            raise HostPoolError(f"{self._size()}, and the system refused {error}: {_REMEDY}") from error
        self.unpinned_reason = self._pin(pin, pin_memory or register_with_cuda)
        self._pages = Pages(self.planes, "host")

    @property
    def pinned(self) -> bool:
        """Whether a CUDA device copies from and to it directly; `unpinned_reason` says why not."""
        return not self.unpinned_reason

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        return self.planes.layout.layers

    @property
    def dtype(self) -> torch.dtype:
        return self.planes.layout.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.planes.layout.bytes_per_token

    def page_bytes(self, num_tokens: int) -> int:
        """Return how many bytes a page of `num_tokens` tokens has."""
        return self.planes.layout.page_bytes(num_tokens)

    def layout(self) -> bytes:
        """Return what pages depend on besides their tokens: belongs into the seed of their names."""
        return self.planes.layout.describe()

    def read_page(self, host_slots: Int32Array) -> bytes:
        """Return the bytes of a page whose tokens lie in `host_slots`, see `PoolLayout`.

        Raises IndexError for slots that there are not.
        """
        return self._pages.read(host_slots)

    def write_page(self, host_slots: Int32Array, page: bytes) -> None:
        """Put what `read_page` returned, here or in another process, into `host_slots`.

        Raises ValueError if the page has not the bytes of so many tokens, IndexError for slots that there are not.
        """
        self._pages.write(host_slots, page)

    def _pin(self, pin: Pin, pin_memory: PinMemory) -> str:
        if pin == "never":
            return "pinning is switched off"
        reason = next(filter(None, map(pin_memory, self.planes.groups)), "")
        if reason and pin == "require":
            raise HostPoolError(f"{self._size()}, and they cannot be pinned, as required: {reason}")
        return reason

    def _size(self) -> str:
        return f"a host pool of {self.num_slots} slots needs {self.num_bytes} bytes"


_REMEDY = "raise the memory limit of the container or machine, or make the pool smaller"


def register_with_cuda(memory: Tensor) -> str:
    """Pin ordinary memory where it lies. (torch's own pinned allocations are rounded up to a power of two.)

    Not run on hardware yet.
    """
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.data_ptr()
    error = int(runtime.cudaHostRegister(address, memory.nbytes, 0))
    if error:
        _forget_cuda_error()
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
        return f"CUDA error {error} while locking {memory.nbytes} bytes; RLIMIT_MEMLOCK (memlock) is {shown}, raise it"
    weakref.finalize(memory, runtime.cudaHostUnregister, address)
    return ""


def _forget_cuda_error() -> None:
    """The runtime keeps the last error for whoever launches the next kernel: take it here."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
