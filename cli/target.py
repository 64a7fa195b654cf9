"""Which gateway a command speaks to, and how: in plain text or over TLS, with a client certificate or without."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc

from cli.options import DEFAULT_TARGET

F = TypeVar("F", bound=Callable[..., Any])

ChannelOptions = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files' contents. Without authorities, those that gRPC brings along are trusted."""

    authorities: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway. Without `tls` it is spoken to in plain text."""

    address: str
    tls: Tls | None = None

    @property
    def has_certificate(self) -> bool:
        return self.tls is not None and self.tls.certificate is not None

    def channel(self, options: ChannelOptions = ()) -> grpc.Channel:
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=list(options))
        credentials = grpc.ssl_channel_credentials(self.tls.authorities, self.tls.key, self.tls.certificate)
        return grpc.secure_channel(self.address, credentials, options=list(options))

    def __str__(self) -> str:
        return self.address


def target_options(command: F) -> F:
    """Add --target and the options of TLS; the command gets them as one Target, `target`."""

    @functools.wraps(command)
    def with_target(
        *arguments: Any,
        target: str,
        tls: bool,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        **options: Any,
    ) -> Any:
        return command(*arguments, target=Target(target, _tls(tls, tls_ca, tls_cert, tls_key)), **options)

    wrapped: Any = with_target
    for option in (
        _file_option("--tls-key", "Key of --tls-cert."),
        _file_option("--tls-cert", "Client certificate, PEM; turns TLS on."),
        _file_option("--tls-ca", "Authorities of the gateway's certificate, PEM; turns TLS on."),
        click.option("--tls", is_flag=True, help="Speak TLS, and trust the authorities that are usually trusted."),
        click.option(
            "--target",
            envvar="RADIXGATE_TARGET",
            default=DEFAULT_TARGET,
            show_default=True,
            metavar="HOST:PORT",
            help="The gateway.  [env: RADIXGATE_TARGET]",
        ),
    ):
        wrapped = option(wrapped)
    result: F = wrapped
    return result


def _file_option(name: str, text: str) -> Callable[[F], F]:
    variable = "RADIXGATE_" + name.removeprefix("--").upper().replace("-", "_")
    return click.option(
        name, envvar=variable, type=click.Path(path_type=Path, dir_okay=False), help=f"{text}  [env: {variable}]"
    )


def _tls(wanted: bool, ca: Path | None, cert: Path | None, key: Path | None) -> Tls | None:
    if (cert is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if not wanted and ca is None and cert is None:
        return None
    return Tls(_read("--tls-ca", ca), _read("--tls-cert", cert), _read("--tls-key", key))


def _read(option: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"{option}: {path} cannot be read: {error.strerror}") from error
