"""Keeps the keys of the identity provider: fetched, fetched again, and kept when there is nothing better.

Where a document comes from is a function that blocks: it is called on a thread, one at a time.
"""

import asyncio
import http.client
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from gateway.identity.signing_keys import KeySet, SigningKey, parse_keys

_log = structlog.get_logger(__name__)

_MAX_BYTES = 1 << 20
_FETCH_S = 5.0

Fetch = Callable[[], bytes]  # raises OSError, or ValueError for what can't be a document


class KeysObserver(Protocol):
    def signing_keys_loaded(self, num_keys: int) -> None:
        """The identity provider's keys were fetched; so many can verify tokens."""
        ...

    def signing_keys_failed(self, reason: str) -> None:
        """They could not be: "unreachable" or "malformed". The last ones stay."""
        ...


class KeyRing:
    """The provider's keys as last fetched. Belongs to the event loop.

    Keys that are gone from the document are gone here, but for as long as there is no document the last ones stay.
    Invariant: at most one fetch at a time, and none within `min_pause_s` of the last one's end but by `run`.
    """

    def __init__(
        self,
        fetch: Fetch,
        algorithms: Sequence[str],
        refresh_s: float,
        observer: KeysObserver,
        min_pause_s: float = 3.0,
    ) -> None:
        self._fetch = fetch
        self._algorithms = tuple(algorithms)
        self._refresh_s = refresh_s
        self._min_pause_s = min_pause_s
        self._observer = observer
        self._keys: KeySet | None = None  # None: there never were any
        self._document = b""
        self._fetching: asyncio.Task[None] | None = None
        self._fetched_at = float("-inf")
        self._fault = ""  # as last logged

    @property
    def known(self) -> bool:
        """Whether there ever was a document."""
        return self._keys is not None

    def load(self) -> None:
        """Fetch now, for whoever wants a start to fail without keys. Blocks. Raises OSError or ValueError."""
        self._accept(self._fetch())
        if not self._keys:
            raise ValueError("no key that can verify " + " or ".join(self._algorithms))

    async def find(self, kid: str | None, algorithm: str) -> Sequence[SigningKey]:
        """Return the keys that may have signed a token; an unknown `kid` is reason to fetch, now and then."""
        if (found := self._candidates(kid, algorithm)) or not self._may_fetch():
            return found
        await asyncio.shield(self._fetch_once())
        return self._candidates(kid, algorithm)

    async def run(self) -> None:
        """Fetch every `refresh_s`, sooner while there are no keys, until cancelled."""
        while True:
            await asyncio.shield(self._fetch_once())
            await asyncio.sleep(self._refresh_s if self.known else min(self._refresh_s, self._min_pause_s))

    def _candidates(self, kid: str | None, algorithm: str) -> Sequence[SigningKey]:
        return self._keys.candidates(kid, algorithm) if self._keys is not None else ()

    def _may_fetch(self) -> bool:
        return self._fetching is not None or time.monotonic() - self._fetched_at >= self._min_pause_s

    def _fetch_once(self) -> "asyncio.Task[None]":
        """Return the fetch that is under way, or begin one."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._update(), name="keys of the identity provider")
        return self._fetching

    async def _update(self) -> None:
        try:
            self._accept(await asyncio.to_thread(self._fetch))
        except OSError as error:
            self._failed("unreachable", error)
        except Exception as error:  # noqa: BLE001 - the last keys stay, whatever somebody else's server says
            self._failed("malformed", error)
        finally:
            self._fetching = None
            self._fetched_at = time.monotonic()

    def _accept(self, document: bytes) -> None:
        if self._keys is None or document != self._document:
            self._keys = parse_keys(document, self._algorithms)
            self._document = document
            _log.info("keys of the identity provider read", usable=len(self._keys))
        self._fault = ""
        self._observer.signing_keys_loaded(len(self._keys))

    def _failed(self, reason: str, error: Exception) -> None:
        self._observer.signing_keys_failed(reason)
        if str(error) != self._fault:  # once, not every time
            self._fault = str(error)
            _log.error("keys of the identity provider not read, the last ones stay", reason=reason, error=self._fault)


def from_file(name: str) -> Fetch:
    """Return what reads a file. It is read as often as a URL would be, and compared: no time stamp misleads."""

    def fetch() -> bytes:
        with Path(name).expanduser().open("rb") as file:
            return _bounded(file.read(_MAX_BYTES + 1))

    return fetch


def from_url(url: str, timeout_s: float = _FETCH_S) -> Fetch:
    """Return what gets `url`, which the configuration has looked at.

    Follows no redirection: it may lead to where nobody is who they say.
    """
    opener = urllib.request.build_opener(_NoRedirection)

    def fetch() -> bytes:
        ends_at = time.monotonic() + timeout_s
        try:
            with opener.open(url, timeout=timeout_s) as answer:
                return _bounded(_read(answer, ends_at))
        except http.client.HTTPException as error:
            raise OSError(f"no answer in HTTP: {type(error).__name__}") from error

    return fetch


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object) -> None:
        return None


def _read(answer: http.client.HTTPResponse, ends_at: float) -> bytes:
    """Read a little more than there may be, at most. A socket's timeout alone would let slow servers go on for ever."""
    document = b""
    while len(document) <= _MAX_BYTES and (piece := answer.read1(1 << 16)):
        document += piece
        if time.monotonic() > ends_at:
            raise TimeoutError("the answer took too long")
    return document


def _bounded(document: bytes) -> bytes:
    if len(document) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES >> 20} MiB")
    return document
