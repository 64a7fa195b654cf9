"""Requests as several tenants send them, over gRPC and HTTP, and what the responses said that they used."""

import json
import random
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException

import grpc

from tests.e2e.stack import Client, Stack, chat_request
from tests.processes import wait_until

ADAPTER = "pirate"
# What all tenants' chats of one kind begin with; registered as a public prefix.
HOUSE_RULES = "You answer for a railway. Say which train leaves when, and from which platform. Never guess a time."
LIMITED = "limited"  # the tenant whose policy refuses some of its requests
REFUSALS = {grpc.StatusCode.RESOURCE_EXHAUSTED}

_NUM_DOCUMENTS = 12
_DOCUMENT_WORDS = 90
_NUM_NEW = 6
_PAUSE_S = 0.1  # between two requests of a thread: others want to compute, too
_WORDS = ("river", "bridge", "ticket", "engine", "harbour", "signal", "winter", "copper", "garden", "letter", "market")


@dataclass(frozen=True)
class Used:
    """What one response said."""

    tenant: str
    adapter: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    by_tier: Counter[str] | None  # None over HTTP, which tells no tiers


@dataclass
class Traffic:
    """Keeps a stack busy from threads of its own until the block ends."""

    stack: Stack
    used: list[Used] = field(default_factory=list)
    refused: int = 0
    faults: list[str] = field(default_factory=list)  # requests that failed and should not have
    forgiving: bool = False  # whether requests may fail, because somebody breaks the stack on purpose
    _running: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _in_flight: int = 0

    def pause(self) -> None:
        """Send nothing more, and return when all that was sent has been answered."""
        self._running.clear()
        wait_until(lambda: self._in_flight == 0, timeout_s=60, what="all requests answered")

    def resume(self) -> None:
        self._running.set()

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send requests while the block lasts; fail at its end for what failed."""
        model = _model(self.stack)
        threads = [threading.Thread(target=self._send, args=(number, model), daemon=True) for number in range(3)]
        self._running.set()
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._running.set()
            for thread in threads:
                thread.join(60)
        assert not self.faults, self.faults[:3]

    def totals(self, **labels: str) -> tuple[int, int]:
        """Return the prompt tokens and cached tokens of all responses of a tenant, an adapter, or all."""
        with self._lock:
            mine = [each for each in self.used if all(getattr(each, name) == value for name, value in labels.items())]
        return sum(each.prompt_tokens for each in mine), sum(each.cached_tokens for each in mine)

    def _send(self, number: int, model: str) -> None:
        chance = random.Random(number)
        clients = {tenant: Client(self.stack.grpc, key) for tenant, key in self.stack.keys.items()}
        kinds = self._kinds(clients, model, chance)
        try:
            while not self._ended.wait(_PAUSE_S):
                self._running.wait()
                with self._lock:
                    if not self._running.is_set():
                        continue
                    self._in_flight += 1
                try:
                    self._one(chance.choice(kinds))
                finally:
                    with self._lock:
                        self._in_flight -= 1
        finally:
            for client in clients.values():
                client.close()

    def _one(self, ask: Callable[[], Used]) -> None:
        try:
            used = ask()
        except grpc.RpcError as error:
            code = error.code()
            with self._lock:
                self.refused += code in REFUSALS
            if code not in REFUSALS and not self.forgiving:
                self.faults.append(f"{code}: {error.details()}")
        except (OSError, HTTPException) as error:
            if not self.forgiving:
                self.faults.append(repr(error))
        else:
            with self._lock:
                self.used.append(used)

    def _kinds(self, clients: dict[str, Client], model: str, chance: random.Random) -> list[Callable[[], Used]]:
        def document() -> str:
            # A few are asked for often, most of them rarely: some are found on the device, some below it.
            return _document(min(int(chance.expovariate(0.3)), _NUM_DOCUMENTS - 1))

        def question() -> str:
            return f"What of number {chance.randrange(100)}?"

        def over_grpc(tenant: str, *said: str, adapter: str = "") -> Used:
            return _over_grpc(clients[tenant], tenant, said, adapter)

        return [
            lambda: over_grpc("demo-a", document() + question()),
            lambda: over_grpc("demo-a", document() + question()),
            lambda: over_grpc("demo-a", "Say hello. " + question(), adapter=ADAPTER),
            lambda: over_grpc("demo-b", document() + question()),
            lambda: over_grpc(LIMITED, "Be brief. " + question()),
            lambda: _over_http(self.stack, model, "demo-b", HOUSE_RULES, question()),
            lambda: _over_http(self.stack, model, "demo-a", HOUSE_RULES, question()),
        ]


def _document(number: int) -> str:
    chance = random.Random(1000 + number)
    return f"Document {number}. " + " ".join(chance.choice(_WORDS) for _ in range(_DOCUMENT_WORDS)) + ". "


def _over_grpc(client: Client, tenant: str, said: Iterable[str], adapter: str) -> Used:
    request = chat_request(*said, max_new_tokens=_NUM_NEW)
    request.adapter = adapter
    answer = client.generate(request)
    usage = answer.usage
    tiers = Counter({tier: getattr(usage.cached, tier) for tier in ("device", "host", "storage")})
    return Used(tenant, adapter, usage.prompt_tokens, answer.cached, usage.completion_tokens, tiers)


def _over_http(stack: Stack, model: str, tenant: str, system: str, question: str) -> Used:
    headers = {"authorization": f"Bearer {stack.keys[tenant]}", "content-type": "application/json"}
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": _NUM_NEW, "temperature": 0}
    asked = urllib.request.Request(
        f"http://{stack.http}/v1/chat/completions", data=json.dumps(body).encode(), headers=headers
    )
    with urllib.request.urlopen(asked, timeout=60) as response:
        usage = json.load(response)["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Used(tenant, "", usage["prompt_tokens"], cached, usage["completion_tokens"], None)


def _model(stack: Stack) -> str:
    """Return the name of the base model."""
    headers = {"authorization": f"Bearer {stack.keys['demo-a']}"}
    asked = urllib.request.Request(f"http://{stack.http}/v1/models", headers=headers)
    with urllib.request.urlopen(asked, timeout=60) as response:
        models = json.load(response)["data"]
    return next(str(model["id"]) for model in models if ":" not in model["id"])
