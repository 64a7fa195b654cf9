"""Where samples come from: what a source promises, and what it answers. Sources never raise: they say what is wrong."""

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Protocol
from urllib.parse import urlsplit

from cli.top.samples import Samples, UnreadableError, parse

_MOST_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 16
_MOST_THREADS = 16


class NoAnswerError(Exception):
    """An address does not answer with what it should; the message says why, in a few words."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one endpoint showed, or why it did not."""

    endpoint: str
    at: float  # seconds since the epoch
    samples: Samples | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Poll:
    """What a source answered. `error` says why there is nothing new of all of them."""

    at: float
    looks: tuple[Look, ...] = field(default_factory=tuple)
    error: str = ""


class Source(Protocol):
    """Something that can be asked what endpoints show, from one thread at a time."""

    @property
    def title(self) -> str:
        """Return what is asked, for people."""
        ...

    def begin(self, window_s: float) -> Sequence[Poll]:
        """Return what is known at the start, oldest first."""
        ...

    def poll(self) -> Poll: ...

    def close(self) -> None: ...


class Endpoints:
    """Scrapes metrics endpoints, all at a time. An address that hangs costs its timeout, and no other its answer."""

    def __init__(self, urls: Sequence[str], *, timeout_s: float) -> None:
        self._urls = tuple(dict.fromkeys(urls))
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(min(_MOST_THREADS, len(self._urls)), thread_name_prefix="scrape")
        # Straight to them: a proxy knows nothing of this machine's own addresses.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @property
    def title(self) -> str:
        return f"{len(self._urls)} endpoint{'s' if len(self._urls) != 1 else ''}"

    def begin(self, window_s: float) -> Sequence[Poll]:
        return [self.poll()]

    def poll(self) -> Poll:
        looks = tuple(self._threads.map(self._look, self._urls))
        return Poll(time.time(), looks)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look(self, url: str) -> Look:
        at = time.time()
        try:
            request = urllib.request.Request(url)  # noqa: S310 - http or https, checked
            text = fetch(self._opener, request, self._timeout_s).decode("utf-8")
            samples = parse(text)
        except (NoAnswerError, UnreadableError, UnicodeDecodeError) as error:
            return Look(endpoint_name(url), at, None, str(error))
        if not any(name.startswith("radixgate_") for name in samples.families):
            return Look(endpoint_name(url), at, None, "shows no metrics of RadixGate")
        return Look(endpoint_name(url), at, samples)


def endpoint_name(url: str) -> str:
    """Return what tells this endpoint from others: its address, and its path where that is unusual."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + ("" if parts.path in {"", "/", "/metrics"} else parts.path)


def fetch(opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout_s: float) -> bytes:
    """Return the body of an answer that is complete within `timeout_s`. Raises NoAnswerError."""
    deadline = time.monotonic() + timeout_s
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            blocks: list[bytes] = []
            num_bytes = 0
            while block := answer.read1(_BLOCK_BYTES):
                blocks.append(block)
                num_bytes += len(block)
                if num_bytes > _MOST_BYTES:
                    raise NoAnswerError(f"answers more than {_MOST_BYTES >> 20} MiB")
                if time.monotonic() > deadline:
                    raise NoAnswerError(f"no whole answer in {timeout_s:g} s")
            return b"".join(blocks)
    except urllib.error.HTTPError as error:
        with error:
            raise NoAnswerError(f"HTTP {error.code}") from error
    except TimeoutError as error:
        raise NoAnswerError(f"no answer in {timeout_s:g} s") from error
    except urllib.error.URLError as error:
        raise NoAnswerError(_reason(error.reason, timeout_s)) from error
    except (OSError, HTTPException) as error:
        raise NoAnswerError(_reason(error, timeout_s)) from error


def _reason(reason: object, timeout_s: float) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    if isinstance(reason, ssl.SSLError):
        return f"TLS: {reason.reason or reason}"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return str(reason) or type(reason).__name__


def is_http(url: str) -> bool:
    """Whether `url` is one of HTTP, with a host."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError where it is no port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def metrics_urls(ready: Mapping[str, object]) -> list[str]:
    """Return the endpoints that a ready file of `serve`, `gateway` or `worker` names."""
    said = ready.get("metrics")
    found = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return [url for url in found if isinstance(url, str) and is_http(url)]
