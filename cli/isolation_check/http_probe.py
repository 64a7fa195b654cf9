"""A tenant's access over the OpenAI-compatible HTTP API."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from cli.isolation_check.grpc_probe import CLAIMED_NAMES
from cli.isolation_check.probes import Claim, Question, Refused, Reply, Unreachable
from cli.target import Tls

_TIMEOUT_S = 120.0
_MAX_WAITS = 8
_LONGEST_WAIT_S = 70.0
_BODY_CLAIMS = ("tenant", "tenant_id", "extra_key", "cache_salt", "cache_key", "cache_version")


class HttpProbe:
    """Fits Probe. Asks /v1/completions with token ids."""

    over = "HTTP"
    refusals_of_claims = frozenset({"400"})
    not_found = "404"

    def __init__(
        self,
        url: str,
        key: str,
        model: str,
        tls: Tls | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`url` reads http://HOST:PORT or https://HOST:PORT, with /v1 behind it or without."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        self._host, self._port = parts.hostname or "", parts.port
        self._context = (tls or Tls()).context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._key = key
        self._model = model
        self._sleep = sleep

    @property
    def claims(self) -> Sequence[Claim]:
        headers = [Claim("header", name, "someone") for name in CLAIMED_NAMES]
        return [*headers, *(Claim("body", name, "someone") for name in _BODY_CLAIMS)]

    def ask(self, question: Question, claim: Claim | None = None) -> Reply:
        model = question.model or self._model
        body: dict[str, Any] = {
            "model": f"{model}:{question.adapter}" if question.adapter else model,
            "prompt": question.token_ids,
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if question.scope:
            body["scope"] = question.scope
        headers: dict[str, str] = {}
        if claim is not None:
            (headers if claim.place == "header" else body)[claim.name] = claim.value
        started, response = self._patiently("POST", "/v1/completions", headers, body)
        return _reply(response, started)

    def adapters(self) -> frozenset[str]:
        _, response = self._patiently("GET", "/v1/models", {}, None)
        names = [str(model["id"]).partition(":") for model in _parsed(response.read())["data"]]
        return frozenset(adapter for model, _, adapter in names if adapter and model == self._model)

    def _patiently(
        self, method: str, path: str, headers: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> tuple[float, HTTPResponse]:
        """Send, and again after the time that the gateway names. Returns when it was sent, and the response's head."""
        for _ in range(_MAX_WAITS):
            started, response = self._send(method, path, headers, body)
            if response.status == 200:
                return started, response
            refused = _refusal(response.status, response.read())
            wait = response.headers.get("retry-after", "")
            if response.status not in {429, 503} or not wait.isdigit() or int(wait) > _LONGEST_WAIT_S:
                raise refused
            self._sleep(float(wait))
        raise refused

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> tuple[float, HTTPResponse]:
        connection = (
            HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
            if self._context is None
            else HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=self._context)
        )
        content = None if body is None else json.dumps(body).encode()
        all_headers = {
            "authorization": f"Bearer {self._key}",
            "content-type": "application/json",
            "connection": "close",
            **headers,
        }
        try:
            connection.connect()
            started = time.monotonic()
            connection.request(method, self._path + path, content, all_headers)
            return started, connection.getresponse()
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{self._host}:{self._port} over HTTP: {error}") from error


def _reply(response: HTTPResponse, started: float) -> Reply:
    """Read a stream of events to its end."""
    first_token_s, usage = None, None
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if not line.startswith(b"data: ") or data == b"[DONE]":
            continue
        event = _parsed(data)
        if "error" in event:
            raise _refused(str(event["error"].get("code")), event)
        if first_token_s is None and event.get("choices"):
            first_token_s = time.monotonic() - started
        usage = event.get("usage") or usage
    if usage is None or first_token_s is None:
        raise Unreachable("an answer ended without its usage")
    details = usage.get("prompt_tokens_details") or {}
    return Reply(
        prompt_tokens=usage["prompt_tokens"],
        cached=details.get("cached_tokens", 0),
        public=details.get("public_prefix_tokens", 0),
        cached_public=details.get("cached_public_tokens", 0),
        first_token_s=first_token_s,
    )


def _refusal(status: int, content: bytes) -> Refused:
    return _refused(str(status), _parsed(content))


def _refused(code: str, document: Mapping[str, Any]) -> Refused:
    error = document.get("error") or {}
    details = {name: str(error[name]) for name in ("param", "type") if error.get(name)}
    return Refused(code, str(error.get("message", "")), str(error.get("code") or ""), details)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise Unreachable("what answers over HTTP sends no JSON") from error
    if not isinstance(document, dict):
        raise Unreachable("what answers over HTTP sends no JSON object")
    return document
