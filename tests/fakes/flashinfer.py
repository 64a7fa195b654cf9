"""A stand-in for the module `flashinfer`: the wrapper's signature, its refusals and its results, on the CPU.

Computes from what it was planned with, densely and with a mask; and notes every call's arguments, so that a test can
hold them against the signatures of the real ones (`tests/data/flashinfer_signatures.json`).
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Call:
    method: str
    positional: tuple[Any, ...]
    named: dict[str, Any]


@dataclass
class FakeFlashInfer:
    calls: list[Call] = field(default_factory=list)

    def BatchPrefillWithPagedKVCacheWrapper(self, *args: Any, **kwargs: Any) -> "FakeWrapper":  # noqa: N802 - its name
        self.calls.append(Call("__init__", args, kwargs))
        return FakeWrapper(self.calls, *args, **kwargs)

    def made(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]


class FakeWrapper:
    def __init__(
        self, calls: list[Call], float_workspace_buffer: Tensor, kv_layout: str = "NHD", backend: str = "auto"
    ) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert (kv_layout, backend) == ("NHD", "fa2")
        self._calls = calls
        self._planned: dict[str, Any] = {}

    def plan(self, **named: Any) -> None:
        self._calls.append(Call("plan", (), named))
        for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"):
            assert named[name].dtype == torch.int32, name
            assert named[name].is_contiguous(), name
        assert named["page_size"] == 1
        assert named["causal"]
        assert named["num_qo_heads"] % named["num_kv_heads"] == 0
        assert named["head_dim_qk"] in {64, 128, 256}
        assert {named["q_data_type"], named["kv_data_type"]} <= {torch.float16, torch.bfloat16}
        assert (named["paged_kv_last_page_len"] == 1).all()
        # The real one keeps no reference to what it planned with on the host.
        self._planned = {name: value.clone() if isinstance(value, Tensor) else value for name, value in named.items()}

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, return_lse: bool = False) -> Any:
        self._calls.append(Call("run", (q, paged_kv_cache), {"return_lse": return_lse}))
        planned = self._planned
        assert planned, "run before plan"
        keys, values = paged_kv_cache
        heads, kv_heads, dim = planned["num_qo_heads"], planned["num_kv_heads"], planned["head_dim_qk"]
        assert q.shape == (int(planned["qo_indptr"][-1]), heads, dim)
        assert keys.shape[1:] == values.shape[1:] == (1, kv_heads, dim)
        assert q.dtype == planned["q_data_type"]
        assert keys.dtype == values.dtype == planned["kv_data_type"]
        assert q.stride(-1) == keys.stride(-1) == values.stride(-1) == 1
        out, lse = q.new_zeros(q.shape), torch.zeros(q.shape[:2])
        rows, slots = planned["qo_indptr"].tolist(), planned["paged_kv_indptr"].tolist()
        for first, end, first_slot, end_slot in zip(rows[:-1], rows[1:], slots[:-1], slots[1:], strict=True):
            found = planned["paged_kv_indices"][first_slot:end_slot].long()
            part, part_lse = self._attend(q[first:end].float(), keys[found, 0].float(), values[found, 0].float())
            out[first:end], lse[first:end] = part.to(q.dtype), part_lse
        return (out, lse) if return_lse else out

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        planned = self._planned
        group = planned["num_qo_heads"] // planned["num_kv_heads"]
        keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (keys, values))
        logits = torch.einsum("rhd,khd->rhk", query, keys) * planned["sm_scale"]
        softcap = planned["logits_soft_cap"]
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        # Bottom right: the last row sees the last key. The window counts the keys before the row's own.
        row = torch.arange(len(query))[:, None] + len(keys) - len(query)
        key = torch.arange(len(keys))
        hidden = key > row
        if planned["window_left"] >= 0:
            hidden |= key < row - planned["window_left"]
        logits = logits.masked_fill(hidden[:, None], float("-inf"))
        lse = torch.logsumexp(logits, dim=-1)
        return torch.einsum("rhk,khd->rhd", torch.exp(logits - lse[..., None]), values), lse / torch.tensor(2.0).log()
