"""The connection to a worker: plain text or TLS, and how soon it is noticed that it is dead."""

import asyncio
import time
from collections.abc import AsyncIterable
from typing import TypeVar

import grpc

from gateway.config import WorkerLinkConfig
from transport.client import ClientFiles, channel_credentials
from transport.pems import PemFiles

T = TypeVar("T")


async def channel_to(address: str, config: WorkerLinkConfig) -> grpc.aio.Channel:
    """Raises ValueError, naming the file, for one that TLS cannot use."""
    options: list[tuple[str, int | str]] = [*_options(config)]
    tls = config.tls
    if tls.ca_file is None:
        return grpc.aio.insecure_channel(address, options=options)
    own = PemFiles(tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else None
    # Read for each attempt: rotated files are in use with the next one.
    credentials = await asyncio.to_thread(channel_credentials, ClientFiles(tls.ca_file, own), time.time())
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(address, credentials, options=options)


async def first_of(call: AsyncIterable[T], timeout_s: float) -> T | None:
    """Return what comes first on a call, None where it ends without. Raises TimeoutError, and whatever ends the call.

    In a task of its own: while a call begins, gRPC may swallow a cancellation of whoever waits for it, who would then
    go on for ever.
    """
    coming = asyncio.create_task(_next(call), name="first message of a call")
    coming.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be there any more
    try:
        done, _ = await asyncio.wait([coming], timeout=timeout_s)
        if not done:
            raise TimeoutError
        return coming.result()
    finally:
        coming.cancel()


async def _next(call: AsyncIterable[T]) -> T | None:
    return await anext(aiter(call), None)


def _options(config: WorkerLinkConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_time_ms", int(config.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(config.keepalive_timeout_s * 1000)),
        # What gRPC really waits for the answer to a ping; a minute by default, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", int(config.keepalive_timeout_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # Tokenizers of tens of megabytes; prompts that the gateway's own limits have let in.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
