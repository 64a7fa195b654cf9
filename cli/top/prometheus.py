"""Asks a Prometheus for what the endpoints of a whole fleet showed at its last scrapes."""

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.top.names import SERIES
from cli.top.samples import Samples
from cli.top.sources import Look, NoAnswerError, Poll, endpoint_name, fetch

_QUERY = "/api/v1/query"
_Key = tuple[str, str]  # job and instance


class Prometheus:
    """A Prometheus server, or whatever answers its queries.

    An endpoint is a job and an instance. What it shows counts from the time of its scrape, so asking more often than it
    is scraped changes nothing. Those seen once and gone now are told as down.
    """

    def __init__(self, url: str, *, timeout_s: float, match: str = "", token: str | None = None) -> None:
        """`match`: further matchers of PromQL, as in `namespace="prod"`. `token` is sent as a bearer token."""
        self._url = url.rstrip("/") + _QUERY
        self.title = f"Prometheus {endpoint_name(url)}"
        self._timeout_s = timeout_s
        self._match = f",{match}" if match else ""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener = urllib.request.build_opener()
        self._names: dict[_Key, str] = {}  # of endpoints that were seen

    def begin(self, window_s: float) -> Sequence[Poll]:
        """Look at the beginning of the window first: then there are rates at once."""
        now = time.time()
        return [self._poll(now - window_s), self._poll(now)]

    def poll(self) -> Poll:
        return self._poll(time.time())

    def close(self) -> None:
        return

    def _poll(self, at: float) -> Poll:
        names = "|".join(sorted(SERIES))
        try:
            found = self._endpoints(self._ask(f'{{__name__=~"{names}"{self._match}}}', at))
            up = {_key(labels): value for labels, value in self._ask("up", at)}
            scraped = {_key(labels): value for labels, value in self._ask("timestamp(up)", at)}
        except NoAnswerError as error:
            return Poll(at, (), str(error))
        self._names.update({key: each.name for key, each in found.items()})
        return Poll(at, tuple(_look(key, name, found.get(key), up, scraped, at) for key, name in self._names.items()))

    def _endpoints(self, samples: Iterator[tuple[dict[str, str], float]]) -> dict[_Key, "_Seen"]:
        found: dict[_Key, _Seen] = {}
        for labels, value in samples:
            name = labels.pop("__name__", "")
            seen = found.setdefault(_key(labels), _Seen(labels.get("pod") or labels.get("instance", "?")))
            seen.triples.append((name, labels, value))
        # Only the start of its process is no sign of RadixGate: everybody shows that.
        return {
            key: each
            for key, each in found.items()
            if any(name.startswith("radixgate_") for name, _, _ in each.triples)
        }

    def _ask(self, query: str, at: float) -> Iterator[tuple[dict[str, str], float]]:
        """Return labels and values of an instant vector. Raises NoAnswerError."""
        form = urllib.parse.urlencode({"query": query, "time": f"{at:.3f}"}).encode()
        request = urllib.request.Request(self._url, form, self._headers)  # noqa: S310 - http or https, checked
        try:
            answer: Any = json.loads(fetch(self._opener, request, self._timeout_s))
            if answer["status"] != "success":
                raise NoAnswerError(str(answer.get("error", "the query failed")))
            pairs = [(dict(each["metric"]), float(each["value"][1])) for each in answer["data"]["result"]]
        except (ValueError, KeyError, TypeError) as error:
            raise NoAnswerError("is no Prometheus: its answer is not what one says") from error
        return iter(pairs)


@dataclass(slots=True)
class _Seen:
    name: str
    triples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)


def _key(labels: Mapping[str, str]) -> _Key:
    return labels.get("job", ""), labels.get("instance", "")


def _look(
    key: _Key,
    name: str,
    seen: _Seen | None,
    up: Mapping[_Key, float],
    scraped: Mapping[_Key, float],
    at: float,
) -> Look:
    if seen is None:
        return Look(name, at, None, "gone" if key not in up else "not scraped")
    if up.get(key, 1.0) == 0:
        return Look(name, at, None, "the scrape fails")
    return Look(name, scraped.get(key, at), Samples.of(seen.triples))
