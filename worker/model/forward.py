"""The seam between transformers' model definitions and this worker's attention.

Models run unmodified; where one computes attention it calls the function registered here, which hands the call to
whoever surrounds the forward pass. The batch travels in that context and not in keyword arguments: some definitions
do not pass those on. No mask function is registered under the same name, so that transformers never builds a mask.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

IMPLEMENTATION = "radixgate"


class AttentionHandler(Protocol):
    """Answers the attention calls of one forward pass."""

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, object],
    ) -> Tensor:
        """`query` [1, query_heads, tokens, key_dim], `key` [1, kv_heads, tokens, key_dim], `value` likewise.

        Return [1, tokens, query_heads, value_dim].
        """
        ...


_handler: ContextVar[AttentionHandler] = ContextVar("attention_handler")


@contextmanager
def handling_attention(handler: AttentionHandler) -> Iterator[None]:
    """Send the attention calls of a forward pass inside the `with` block to `handler`."""
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


def register() -> None:
    """Make IMPLEMENTATION known to transformers. Doing it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, _attention)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **arguments: object,
) -> tuple[Tensor, None]:
    return _handler.get().attend(module, query, key, value, attention_mask, arguments), None
