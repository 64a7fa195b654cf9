"""The least that can stand between a client and a worker: a grpc.aio proxy that passes each message on, unread.

python -m benchmarks.gateway_proxy --backend HOST:PORT --ready-file FILE
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc


class Passing(grpc.GenericRpcHandler):
    """Takes every method as a stream of bytes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        backend: Any = self._channel.unary_stream(handler_call_details.method)

        async def passed(request: bytes, context: Any) -> AsyncIterator[bytes]:
            async for message in backend(request):
                yield message

        return grpc.unary_stream_rpc_method_handler(passed)


async def _serve(backend: str, ready_file: Path) -> None:
    async with grpc.aio.insecure_channel(backend) as channel:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Passing(channel),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await asyncio.to_thread(ready_file.write_text, json.dumps({"grpc": f"127.0.0.1:{port}"}))
        await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", required=True, help="host:port")
    parser.add_argument("--ready-file", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.backend, arguments.ready_file))


if __name__ == "__main__":
    main()
