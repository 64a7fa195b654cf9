"""Reads traces: one JSON object a line, each a request. Knows two formats, told apart line by line.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}
    {"token_ids": [1, 2, 3], "output_token_ids": [4], "timestamp": 27482, "tenant": "acme"}

The first is Mooncake's: each id stands for 512 tokens, the last one for what is left of `input_length`. What an id
stood for is not known, so each gets a run of 512 tokens of its own: equal ids are equal tokens, and an id cut short is
the beginning of its run. Nothing is known of the outputs, and they count as stored by nobody.

The second names the tokens; all but `token_ids` may be missing. Timestamps are in milliseconds in both; a request
without one comes a second after the request before it.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hicache.errors import InvalidKeyError
from hicache.keys import TOKEN_DTYPE, Int32Array, pack_tokens

BLOCK_TOKENS = 512
_LATEST_MS = sys.float_info.max
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which no encoding has
_MAX_BLOCKS = 2**31 // BLOCK_TOKENS
_BLOCK = np.arange(BLOCK_TOKENS, dtype=np.int32)
_NO_TOKENS: Int32Array = np.empty(0, dtype=np.int32)


class TraceError(Exception):
    """A line that is no request: names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request as it was recorded."""

    timestamp_s: float
    prompt: Int32Array  # int32[num_tokens], at least one
    output: Int32Array  # int32[num_tokens]; empty if not known
    tenant: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A file that was read once: every line of it is a request."""

    path: Path
    num_requests: int
    num_tokens: int  # of prompts and outputs together

    def __iter__(self) -> Iterator[TraceRequest]:
        return _read(self.path)


def open_trace(path: Path, progress: Callable[[int], None] = lambda num_requests: None) -> Trace:
    """Read a whole trace to see what there is. Raises TraceError at the first line that is no request."""
    num_requests = num_tokens = 0
    for request in _read(path):
        num_requests += 1
        num_tokens += len(request.prompt) + len(request.output)
        progress(num_requests)
    if not num_requests:
        raise TraceError(f"{path}: there is no request in it")
    return Trace(path, num_requests, num_tokens)


def _read(path: Path) -> Iterator[TraceRequest]:
    reader = _LineReader()
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                number += 1
                if not line.isspace():
                    yield reader.read(line)
    except _FieldError as error:
        raise TraceError(f"{path}, line {number}: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}, after line {number}: not UTF-8 text: {error.reason}") from error


class _FieldError(Exception):
    pass


class _LineReader:
    """Turns lines into requests. Remembers the blocks seen, and the time of the line before."""

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}  # by id, in the order of their first appearance
        self._last_s: float | None = None

    def read(self, line: str) -> TraceRequest:
        try:
            fields: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _FieldError(f"not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise _FieldError("not a JSON object")
        timestamp_s = self._timestamp_s(fields)
        if "hash_ids" in fields:
            prompt, output = self._blocks_of(fields), _NO_TOKENS
        elif "token_ids" in fields:
            prompt, output = _tokens(fields, "token_ids"), _tokens(fields, "output_token_ids")
        else:
            raise _FieldError("neither hash_ids nor token_ids is there")
        if not len(prompt):
            raise _FieldError("token_ids: must not be empty")
        tenant = fields.get("tenant", "")
        if not isinstance(tenant, str) or _LONE_SURROGATE.search(tenant):
            raise _FieldError(f"tenant: must be a text, got {_shown(tenant)}")
        self._last_s = timestamp_s
        return TraceRequest(timestamp_s, prompt, output, tenant)

    def _timestamp_s(self, fields: dict[str, Any]) -> float:
        if "timestamp" not in fields:
            return 0.0 if self._last_s is None else self._last_s + 1.0
        timestamp = fields["timestamp"]
        if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or not 0 <= timestamp <= _LATEST_MS:
            raise _FieldError(f"timestamp: must be milliseconds from 0, got {_shown(timestamp)}")
        timestamp_s = float(timestamp) / 1000
        if self._last_s is not None and timestamp_s < self._last_s:
            raise _FieldError(f"timestamp: {_shown(timestamp)} is before the line above, the trace is not in order")
        return timestamp_s

    def _blocks_of(self, fields: dict[str, Any]) -> Int32Array:
        num_tokens = fields.get("input_length")
        if type(num_tokens) is not int or num_tokens < 1:
            raise _FieldError(f"input_length: must be an integer from 1, got {_shown(num_tokens)}")
        ids = fields["hash_ids"]
        if not isinstance(ids, list) or not all(type(each) is int for each in ids):
            raise _FieldError(f"hash_ids: must be a list of integers, got {_shown(ids)}")
        if len(ids) != -(-num_tokens // BLOCK_TOKENS):
            raise _FieldError(
                f"hash_ids: {num_tokens} tokens are {-(-num_tokens // BLOCK_TOKENS)} blocks of {BLOCK_TOKENS}, "
                f"got {len(ids)}"
            )
        blocks = [self._blocks.setdefault(each, len(self._blocks)) for each in ids]
        if len(self._blocks) > _MAX_BLOCKS:
            raise _FieldError(f"hash_ids: the trace has more than {_MAX_BLOCKS} different ids")
        starts = np.array(blocks, dtype=np.int32) * BLOCK_TOKENS
        tokens: Int32Array = (starts[:, None] + _BLOCK).ravel()
        return tokens[:num_tokens]


def _tokens(fields: dict[str, Any], name: str) -> Int32Array:
    tokens = fields.get(name, [])
    if not isinstance(tokens, list):
        raise _FieldError(f"{name}: must be a list of integers, got {_shown(tokens)}")
    try:
        return np.frombuffer(pack_tokens(tokens), dtype=TOKEN_DTYPE)
    except (InvalidKeyError, ValueError, OverflowError) as error:
        raise _FieldError(f"{name}: {str(error).removeprefix('token_ids ')}") from error


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
