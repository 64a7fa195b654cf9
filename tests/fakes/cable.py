"""A network that dies without a word."""

import asyncio
import contextlib


class Cable:
    """A TCP connection to a worker that can be pulled out without anybody being told."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._plugged = asyncio.Event()
        self._plugged.set()
        self.address = ""

    async def __aenter__(self) -> "Cable":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(self, *reason: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    def pull(self) -> None:
        self._plugged.clear()

    def plug(self) -> None:
        self._plugged.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        for pair in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._carry(*pair)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while received := await reader.read(65536):
                await self._plugged.wait()
                writer.write(received)
        writer.close()
