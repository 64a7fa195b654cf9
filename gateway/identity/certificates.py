"""Tenants by the certificates of their connections (mTLS): for gRPC calls that bring no `authorization`.

TLS has verified a certificate before anybody gets here; this says whose it is. A certificate is no more than transport
to a call with an `authorization`, and to every call over HTTP.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Protocol

from cryptography import x509
from cryptography.x509.oid import NameOID

from gateway.errors import UnauthenticatedError
from gateway.identity.callers import Caller, Certificate, Credentials
from gateway.identity.named_tenants import NamedTenants, Refused, label


class AuthObserver(Protocol):
    def auth_failed(self, reason: str) -> None: ...


@lru_cache(maxsize=1024)
def certificate_in(pem: bytes) -> Certificate | None:
    """Return the identities in a verified certificate, or None for one that cannot be read.

    From the certificate itself and not from what gRPC says of it: there, names of all kinds are one list (an e-mail
    address may spell a URI) and end at their first NUL. Cached: each call of a connection brings the same one.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = [str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        alternative = _alternative_names(certificate)
    except (ValueError, x509.UnsupportedGeneralNameType, x509.DuplicateExtension):
        return None
    # Several common names are none: who wrote them did not mean one of them.
    return Certificate(names[0] if len(names) == 1 else "", alternative)


def _alternative_names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (
        *names.get_values_for_type(x509.DNSName),
        *names.get_values_for_type(x509.UniformResourceIdentifier),
    )


class CertificateAuthenticator:
    """Recognises tenants by the names in a client's certificate: those that are listed, and those with a prefix."""

    def __init__(
        self, tenants: Mapping[str, str], prefix: str | None, named: NamedTenants, observer: AuthObserver
    ) -> None:
        """`tenants` by name; what follows `prefix` in a name is a tenant's id."""
        self._tenants = dict(tenants)
        self._prefix = prefix
        self._named = named
        self._observer = observer

    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Caller:
        """Raises UnauthenticatedError, PermissionDeniedError for a tenant that is suspended, or UnavailableError."""
        found = dict(self._matches(credentials.certificate)) if credentials.certificate else {}
        if len(found) != 1:  # names of two tenants are nobody's
            raise self._refused("certificate_ambiguous" if found else "certificate_unknown")
        ((tenant_id, name),) = found.items()
        try:
            return await self._named.caller(tenant_id, label("certificate", name), arrived_at)
        except Refused:
            raise self._refused("certificate_tenant") from None

    def _matches(self, certificate: Certificate) -> Iterator[tuple[str, str]]:
        """Yield each tenant's id with the name that says so."""
        for name in filter(None, (certificate.common_name, *certificate.alternative_names)):
            if name in self._tenants:
                yield self._tenants[name], name
            elif self._prefix is not None and name.startswith(self._prefix):
                yield name.removeprefix(self._prefix), name

    def _refused(self, reason: str) -> UnauthenticatedError:
        self._observer.auth_failed(reason)
        return UnauthenticatedError(_REFUSED)


_REFUSED = "the client's certificate is no tenant's, and there is no `authorization`"
