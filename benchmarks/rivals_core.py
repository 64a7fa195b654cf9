"""The radix tree that SGLang wrote in Rust, driven through its own binding, without the Python that SGLang puts around.

Every operation is the shortest sequence of calls that does what ours does; slots are int64 tensors on the CPU, keys are
int64 arrays that are handed over as they are.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Keys = NDArray[np.int64]

_FULL = 0  # the component that holds KV; there is no other here
_EXTRA_KEY = "tenant"


def load_bindings(site_packages: Path) -> Any | None:
    """Return the extension module, or None if there is none. torch, which it is linked with, is loaded by now."""
    folder = site_packages / "sglang" / "srt" / "mem_cache" / "rust_tree_core"
    for path in sorted(folder.glob("mem_cache.cpython-*.so")):
        spec = importlib.util.spec_from_file_location("mem_cache", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return None


class RustHold:
    """A locked prefix: its last node, the receipt that unlocks it, and its slots."""

    __slots__ = ("node", "receipt", "slots")

    def __init__(self, node: int, receipt: Any, slots: torch.Tensor) -> None:
        self.node = node
        self.receipt = receipt
        self.slots = slots


class RustTree:
    """One tree of `bindings`, under LRU at page size 1, without a host tier."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        parameters = bindings.TreeCoreInitParamsBinding(
            eviction_policy="lru",
            slru_protected_threshold=2,
            tlru_tail_budget=0,
            tlru_float_config=None,
            page_size=1,
            is_write_back=False,
            enable_hicache=False,
            write_through_threshold=256,
            device="cpu",
            swa_sliding_window_size=None,
            swa_req_ring=False,
            enable_kv_cache_events=False,
            dynamo_kv_event_format=False,
            mamba_cache_chunk_size=None,
            mamba_max_states_per_path=None,
        )
        self._core = bindings.RustUnifiedTreeCoreBinding(parameters, [_FULL])
        self._root = self._core.root_node_handle(_EXTRA_KEY)

    def match(self, key: Keys) -> int:
        """Return the last node of the longest prefix: the walk alone."""
        result = self._core.match_prefix(self._bindings.MatchParamsBinding(key=key, extra_key=_EXTRA_KEY))
        node: int = result.last_device_node_id
        return node

    def acquire(self, key: Keys) -> RustHold:
        """Find the longest prefix, lock it and collect its slots: what `PrefixCache.acquire` does."""
        node = self.match(key)
        receipt = self._core.inc_lock_ref(node, [])
        return RustHold(node, receipt, self._core.collect_full_device_indices(node, self._root))

    def lock(self, node: int) -> Any:
        return self._core.inc_lock_ref(node, [])

    def unlock(self, node: int, receipt: Any) -> None:
        parameters = self._bindings.DecLockRefParamsBinding(
            node_id=receipt.node_id,
            component_lock_uuids=receipt.component_lock_uuids,
            component_host_lock_uuids=receipt.component_host_lock_uuids,
            skipped_lock_components=receipt.skipped_lock_components,
        )
        self._core.dec_lock_ref(node, parameters, False)

    def insert(self, key: Keys, slots: torch.Tensor, known: int = 0) -> tuple[int, list[torch.Tensor]]:
        """Insert a whole key of which `known` tokens are its tree's already. Returns its last node, and duplicates."""
        result = self._core.insert(
            self._bindings.InsertParamsBinding(key=key, value=slots, extra_key=_EXTRA_KEY, prev_prefix_len=known)
        )
        freed = [slots for _, freed in result.cache_actions for slots in freed]
        return result.last_device_node, freed

    def evict(self, num_tokens: int) -> list[torch.Tensor]:
        """Evict whole leaves, coldest first, until `num_tokens` are free. Returns their slots."""
        core = self._core
        freed: list[torch.Tensor] = []
        evicted = {_FULL: 0}
        core.evict_device_start(_FULL, num_tokens)
        while evicted[_FULL] < num_tokens:
            step = core.evict_device_next_node(_FULL, evicted)
            freed.extend(_accounted(step, evicted))
            if step.node_id is not None:
                freed.extend(_accounted(core.evict_device_leaf(step.node_id), evicted))
            elif not step.made_progress:
                break
        core.evict_device_end(_FULL)
        return freed

    def check(self) -> None:
        self._core.sanity_check([], [])


def _accounted(step: Any, evicted: dict[int, int]) -> Iterator[torch.Tensor]:
    for component, count in step.tracker.items():
        evicted[component] = evicted.get(component, 0) + count
    yield from step.new_device_frees.get(_FULL, ())


class SlotStack:
    """Free slots, last in, first out: the cheapest allocator that tensors allow."""

    def __init__(self, num_slots: int) -> None:
        self._ids = torch.arange(num_slots)  # int64[num_slots], of which the first num_free are free
        self.num_free = num_slots

    def allocate(self, num_slots: int) -> torch.Tensor:
        self.num_free -= num_slots
        return self._ids[self.num_free : self.num_free + num_slots].clone()

    def free(self, slots: torch.Tensor) -> None:
        end = self.num_free + len(slots)
        self._ids[self.num_free : end] = slots
        self.num_free = end
