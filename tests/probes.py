"""Asks a process's HTTP checks, as a kubelet does."""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Callable

PATIENCE_S = 20.0


def probe(metrics_url: str, path: str) -> tuple[int, str]:
    """Return status and body of a path beside /metrics."""
    try:
        with urllib.request.urlopen(metrics_url.removesuffix("/metrics") + path, timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


async def until_probe(metrics_url: str, path: str, wanted: Callable[[tuple[int, str]], bool]) -> tuple[int, str]:
    """Ask until the answer is as wanted, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = await asyncio.to_thread(probe, metrics_url, path)
        if wanted(answer):
            return answer
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.02)
