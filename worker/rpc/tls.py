"""What a worker shows to gateways, and whom it lets in, where it speaks TLS."""

import time

from transport.pems import PemFiles, TlsFileError, checked, read_raw
from transport.server import ServerTls, TlsObserver
from worker.config import TlsConfig
from worker.errors import WorkerStartError


def check_tls(config: TlsConfig) -> None:
    """Raise WorkerStartError for files that cannot serve: before a model is loaded for nothing."""
    files = _files(config)
    if files is not None:
        try:
            checked(read_raw(files), files, time.time())
        except TlsFileError as error:
            raise _start_error(error) from error


def server_tls(config: TlsConfig, observer: TlsObserver) -> ServerTls | None:
    """Return None where the worker speaks plain text. Raises WorkerStartError for files that cannot serve."""
    files = _files(config)
    if files is None:
        return None
    try:
        return ServerTls(files, config.reload_s, observer)
    except TlsFileError as error:
        raise _start_error(error) from error


def _files(config: TlsConfig) -> PemFiles | None:
    if config.cert_file is None or config.key_file is None:
        return None
    return PemFiles(config.cert_file, config.key_file, config.client_ca_file)


def _start_error(error: TlsFileError) -> WorkerStartError:
    return WorkerStartError(f"worker.tls: {error}")
