"""A certificate with its key, and the authorities of the other side: read from PEM files and checked as a whole.

What is wrong is said before anybody tries to serve with it, by the name of the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

# Far beyond any chain or bundle; a file of another kind should not fill the memory.
_MAX_FILE_BYTES = 4 << 20


class TlsFileError(ValueError):
    """A file that TLS cannot use. `reason` is one of a few words, for metrics; the message names the file."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PemFiles:
    """Where they lie: the own certificate with its chain, its key, and the authorities of the other side."""

    cert_file: str
    key_file: str
    peer_ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class Pems:
    """What belongs together: the key is the certificate's, and the certificate was valid when it was read."""

    chain: bytes
    key: bytes = field(repr=False)
    peer_ca: bytes | None
    expires_at: float  # of the certificate, seconds since the epoch


@dataclass(frozen=True, slots=True)
class RawPems:
    """The files' bytes, unchecked."""

    chain: bytes
    key: bytes = field(repr=False)
    peer_ca: bytes | None


def read_raw(files: PemFiles) -> RawPems:
    """Return what the files hold. Raises TlsFileError for one that cannot be read."""
    peer_ca = read_file(files.peer_ca_file) if files.peer_ca_file is not None else None
    return RawPems(read_file(files.cert_file), read_file(files.key_file), peer_ca)


def checked(raw: RawPems, files: PemFiles, now: float) -> Pems:
    """Return what was read if it can serve at `now`. Raises TlsFileError."""
    chain = _certificates(raw.chain, files.cert_file)
    certificate = chain[0]
    key = _private_key(raw.key, files.key_file)
    public = (certificate.public_key(), key.public_key())
    if len({each.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for each in public}) != 1:
        raise TlsFileError("mismatch", f"{files.key_file} is not the key of the certificate in {files.cert_file}")
    _check_dates([certificate], files.cert_file, now)
    peer_ca = None
    if raw.peer_ca is not None and files.peer_ca_file is not None:
        peer_ca = authorities(raw.peer_ca, files.peer_ca_file, now)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pems(_pem(chain), pem, peer_ca, certificate.not_valid_after_utc.timestamp())


def authorities(pem: bytes, name: str, now: float) -> bytes:
    """Return the authorities in the file `name`. Raises TlsFileError if none is valid at `now`."""
    certificates = _certificates(pem, name)
    _check_dates(certificates, name, now)
    return _pem(certificates)


def read_file(name: str) -> bytes:
    """Return a file's content. Raises TlsFileError."""
    try:
        with Path(name).expanduser().open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TlsFileError("unreadable", f"{name} cannot be read: {error.strerror or error}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise TlsFileError("malformed", f"{name} is larger than {_MAX_FILE_BYTES >> 20} MiB")
    return content


def _certificates(pem: bytes, name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise TlsFileError("malformed", f"{name} holds no certificate in PEM form, or one that is cut off") from error


def _pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Return certificates and nothing else: OpenSSL and BoringSSL differ in what they skip between them."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _private_key(pem: bytes, name: str) -> Any:
    try:
        return load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise TlsFileError("malformed", f"{name} is encrypted; keys are read without a password") from error
    except Exception as error:
        # The library's own exceptions are many, and none of their texts belongs in a log: this is a private key.
        raise TlsFileError("malformed", f"{name} holds no private key in PEM form, or one that is cut off") from error


def _check_dates(certificates: Sequence[x509.Certificate], name: str, now: float) -> None:
    """Raise TlsFileError unless one of them is valid at `now`."""
    if any(
        each.not_valid_before_utc.timestamp() <= now < each.not_valid_after_utc.timestamp() for each in certificates
    ):
        return
    last = max(certificates, key=lambda each: each.not_valid_after_utc)
    if last.not_valid_after_utc.timestamp() <= now:
        raise TlsFileError(
            "expired", f"{name}: the certificate expired at {last.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        )
    raise TlsFileError(
        "not_yet_valid", f"{name}: the certificate is valid from {last.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    )
