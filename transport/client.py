"""TLS towards another process of ours: whom to trust there, and what to show."""

from dataclasses import dataclass

import grpc

from transport.pems import PemFiles, authorities, checked, read_file, read_raw


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """PEM files: the authorities of the other side, and the own certificate where the other side asks for one."""

    ca_file: str
    own: PemFiles | None = None


def channel_credentials(files: ClientFiles, now: float) -> grpc.ChannelCredentials:
    """Return credentials for one channel, from what the files hold now. Blocks. Raises TlsFileError.

    Whoever makes a channel for each connection has rotated files in use at the next one.
    """
    trusted = authorities(read_file(files.ca_file), files.ca_file, now)
    if files.own is None:
        return grpc.ssl_channel_credentials(trusted)
    own = checked(read_raw(files.own), files.own, now)
    return grpc.ssl_channel_credentials(trusted, own.key, own.chain)
