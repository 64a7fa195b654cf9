"""Whom a command speaks to, and how: in plain text or over TLS, with a client certificate or without."""

import functools
import ssl
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
    """PEM files. Without authorities, those that are usually trusted are."""

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        files = (self.authorities, self.key, self.certificate)
        return grpc.ssl_channel_credentials(*(None if file is None else file.read_bytes() for file in files))

    def context(self) -> ssl.SSLContext:
        """Return the same for HTTPS."""
        context = ssl.create_default_context(cafile=self.authorities)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to speak to. Without `tls` in plain text."""

    address: str
    tls: Tls | None = None

    @property
    def has_certificate(self) -> bool:
        return self.tls is not None and self.tls.certificate is not None

    def channel(self, options: ChannelOptions = ()) -> grpc.Channel:
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=list(options))
        return grpc.secure_channel(self.address, self.tls.channel_credentials(), options=list(options))

    def __str__(self) -> str:
        return self.address


def target_options(command: F) -> F:
    """Add --target and the options of TLS; the command gets them as one Target, `target`."""

    @functools.wraps(command)
    def with_target(*arguments: Any, target: str, tls: Tls | None, **options: Any) -> Any:
        return command(*arguments, target=Target(target, tls), **options)

    option = click.option(
        "--target",
        envvar="RADIXGATE_TARGET",
        default=DEFAULT_TARGET,
        show_default=True,
        metavar="HOST:PORT",
        help="The gateway.  [env: RADIXGATE_TARGET]",
    )
    wrapped: Any = option(tls_options(with_target))
    result: F = wrapped
    return result


def tls_options(command: F) -> F:
    """Add the options of TLS; the command gets them as `tls`, None for plain text."""

    @functools.wraps(command)
    def with_tls(
        *arguments: Any, tls: bool, tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, **options: Any
    ) -> Any:
        return command(*arguments, tls=_tls(tls, tls_ca, tls_cert, tls_key), **options)

    wrapped: Any = with_tls
    for option in (
        _file_option("--tls-key", "Key of --tls-cert."),
        _file_option("--tls-cert", "Client certificate, PEM; turns TLS on."),
        _file_option("--tls-ca", "Authorities of the server's certificate, PEM; turns TLS on."),
        click.option("--tls", is_flag=True, help="Speak TLS, and trust the authorities that are usually trusted."),
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
    for option, path in (("--tls-ca", ca), ("--tls-cert", cert), ("--tls-key", key)):
        _check_readable(option, path)
    return Tls(ca, cert, key)


def _check_readable(option: str, path: Path | None) -> None:
    try:
        if path is not None:
            path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"{option}: {path} cannot be read: {error.strerror}") from error
