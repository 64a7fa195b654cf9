"""Sends the progress bars of transformers to a function instead of the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import transformers.modeling_gguf_pytorch_utils
from transformers.utils import logging

# This one module takes its bars from tqdm directly. Any: that name is not part of what it exports.
_gguf: Any = transformers.modeling_gguf_pytorch_utils


@contextmanager
def reporting_bars(report: Callable[[float], None]) -> Iterator[None]:
    """Inside the `with` block, bars draw nothing and report how far the furthest of them has come."""
    furthest = 0.0

    def rise(fraction: float) -> None:
        nonlocal furthest
        if fraction > furthest:
            furthest = fraction
            report(fraction)

    def bar(*args: Any, **kwargs: Any) -> "_Bar":
        return _Bar(rise, *args, **kwargs)

    before = logging.set_tqdm_hook(lambda _factory, args, kwargs: bar(*args, **kwargs))
    theirs = _gguf.tqdm
    _gguf.tqdm = bar
    try:
        yield
    finally:
        _gguf.tqdm = theirs
        logging.set_tqdm_hook(before)


class _Bar(logging.EmptyTqdm):
    def __init__(self, report: Callable[[float], None], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._report = report
        self._items = args[0] if args else kwargs.get("iterable")

    def __iter__(self) -> Iterator[Any]:
        items = list(self._items or ())
        for index, item in enumerate(items):
            yield item
            self._report((index + 1) / len(items))
