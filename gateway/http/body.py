"""The body of a request: bytes within their bounds, and JSON that means one thing only."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from gateway.errors import CancelledRequestError, InvalidRequestError, Violation
from gateway.http.errors import BodyTooLargeError, BodyTooSlowError, Json, UnsupportedMediaError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def read_body(headers: Mapping[str, str], receive: Receive, max_bytes: int, timeout_s: float) -> bytes:
    """Return the whole body.

    Raises UnsupportedMediaError and BodyTooLargeError, both before more is read than needed to know, BodyTooSlowError,
    or CancelledRequestError when the client has gone.
    """
    _check_media(headers)
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            more = True
            while more:
                chunk, more = await next_chunk(receive)
                body += chunk
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise BodyTooSlowError(f"the body did not arrive within {timeout_s:g} s") from None
    return bytes(body)


async def next_chunk(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of the body, and whether there is more. Raises CancelledRequestError."""
    message = await receive()
    if message["type"] != "http.request":
        raise CancelledRequestError("the client has gone")
    return message.get("body", b""), message.get("more_body", False)


def parse_object(body: bytes) -> Json:
    """Return the JSON object that `body` spells. Raises InvalidRequestError."""
    if not body:
        raise _refused("is empty; must be a JSON object")
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant, parse_float=_finite
        )
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair has no encoding
    except InvalidRequestError:
        raise
    except json.JSONDecodeError as error:
        raise _refused(f"is not valid JSON: {error.msg} at character {error.pos}") from None
    except UnicodeDecodeError as error:
        raise _refused(f"is not valid UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise _refused("contains half a surrogate pair, which is no character") from None
    except RecursionError:
        raise _refused("nests too deeply") from None
    except ValueError:  # integers of thousands of digits
        raise _refused("contains a number with too many digits") from None
    if not isinstance(value, dict):
        raise _refused("must be a JSON object")
    return value


def _check_media(headers: Mapping[str, str]) -> None:
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaError("the body must be sent as `content-type: application/json`")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaError("the body must be sent without `content-encoding`")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _refused(f"has an object with two fields {twice[:64]!r}")
    return found


def _refuse_constant(name: str) -> None:
    raise _refused(f"contains {name}, which is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in {float("inf"), float("-inf")}:
        raise _refused("contains a number that is too large")
    return value


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has more than {max_bytes} bytes, the most that are taken")


def _refused(description: str) -> InvalidRequestError:
    return InvalidRequestError([Violation("body", description)])
