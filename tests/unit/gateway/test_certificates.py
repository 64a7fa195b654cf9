"""Whose certificate it is: its names, as the certificate has them, and the tenants that they stand for."""

import ipaddress
import time
from collections.abc import Sequence

import pytest
from cryptography import x509

from gateway.config import PolicyConfig
from gateway.errors import PermissionDeniedError, UnauthenticatedError
from gateway.identity.callers import Caller, Certificate, Credentials
from gateway.identity.certificates import CertificateAuthenticator, certificate_in
from gateway.identity.directory import StoreDirectory
from gateway.identity.memory import MemoryKeyStore, MemoryTenantStore
from gateway.identity.named_tenants import NamedTenants
from gateway.identity.stores import TenantState
from gateway.identity.terms import TermsBook
from tests.fakes.authority import Authority
from tests.fakes.gateway_stack import RecordingObserver

AUTHORITY = Authority()
PREFIX = "spiffe://example.org/tenant/"


def names(common_names: str | Sequence[str], *others: x509.GeneralName) -> Certificate | None:
    return certificate_in(AUTHORITY.issue(common_names, others).chain)


def test_common_name_dns_names_and_uris_are_names() -> None:
    found = names("Acme", x509.UniformResourceIdentifier(PREFIX + "acme"), x509.DNSName("acme.example"))
    assert found == Certificate("Acme", ("acme.example", PREFIX + "acme"))


def test_other_kinds_of_names_are_none() -> None:
    others = (
        x509.RFC822Name(PREFIX + "globex@example.org"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
        x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
        x509.OtherName(x509.ObjectIdentifier("1.2.3.4"), b"\x0c\x04acme"),
        x509.DirectoryName(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "acme")])),
    )
    assert names([], *others) == Certificate("", ())


def test_a_name_does_not_end_at_a_nul() -> None:
    found = names("acme\0.evil.example", x509.DNSName("acme\0.evil.example"))
    assert found is None or "acme" not in (found.common_name, *found.alternative_names)


def test_several_common_names_are_none() -> None:
    assert names(["acme", "globex"]) == Certificate("")


def test_no_name_at_all_is_no_name() -> None:
    assert names([]) == Certificate("")


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_cannot_be_read_is_no_certificate(pem: bytes) -> None:
    assert certificate_in(pem) is None


class Door:
    def __init__(self) -> None:
        self.observer = RecordingObserver()
        self.tenants = MemoryTenantStore()
        directory = StoreDirectory(self.tenants, MemoryKeyStore(self.tenants))
        named = NamedTenants(directory, TermsBook(PolicyConfig()), self.observer)
        by_name = {"Acme Ltd": "acme", "globex.example": "globex", "gone.example": "gone"}
        self._authenticator = CertificateAuthenticator(by_name, PREFIX, named, self.observer)

    async def enter(self, common_name: str, *alternative: str) -> Caller:
        certificate = Certificate(common_name, alternative)
        return await self._authenticator.authenticate(Credentials(certificate=certificate), time.monotonic())


@pytest.fixture
async def door() -> Door:
    made = Door()
    for tenant_id in ("acme", "globex"):
        await made.tenants.create(tenant_id, "", time.time())
    return made


@pytest.mark.parametrize(
    ("certificate", "tenant_id", "credential"),
    [
        (("Acme Ltd",), "acme", "certificate Acme Ltd"),
        (("", "globex.example"), "globex", "certificate globex.example"),
        (("whoever", PREFIX + "globex"), "globex", "certificate " + PREFIX + "globex"),
        (("Acme Ltd", PREFIX + "acme"), "acme", "certificate " + PREFIX + "acme"),
    ],
    ids=["common name", "DNS name", "prefix", "two names of one tenant"],
)
async def test_a_name_stands_for_its_tenant(
    door: Door, certificate: tuple[str, ...], tenant_id: str, credential: str
) -> None:
    caller = await door.enter(*certificate)
    assert (caller.tenant_id, caller.credential) == (tenant_id, credential)


BAD = {
    "unknown name": (("nobody",), "certificate_unknown"),
    "no name": (("",), "certificate_unknown"),
    "the tenant's id, without the prefix": (("acme",), "certificate_unknown"),
    "another case": (("ACME LTD",), "certificate_unknown"),
    "the prefix further back": (("x" + PREFIX + "acme",), "certificate_unknown"),
    "names of two tenants": (("Acme Ltd", "globex.example"), "certificate_ambiguous"),
    "two prefixed names": (("", PREFIX + "acme", PREFIX + "globex"), "certificate_ambiguous"),
    "a listed tenant that does not exist": (("", "gone.example"), "certificate_tenant"),
    "a prefixed tenant that does not exist": (("", PREFIX + "initech"), "certificate_tenant"),
    "the prefix alone": (("", PREFIX), "certificate_tenant"),
    "a path behind the tenant": (("", PREFIX + "acme/x"), "certificate_tenant"),
}


@pytest.mark.parametrize(("certificate", "reason"), BAD.values(), ids=BAD)
async def test_a_certificate_of_no_tenant_gets_the_one_answer(
    door: Door, certificate: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        await door.enter(*certificate)
    assert str(caught.value) == "the client's certificate is no tenant's, and there is no `authorization`"
    assert door.observer.auth_failures == [reason]


async def test_a_suspended_tenants_certificate_is_refused_as_such(door: Door) -> None:
    await door.tenants.set_state("acme", TenantState.SUSPENDED)
    with pytest.raises(PermissionDeniedError) as caught:
        await door.enter("Acme Ltd")
    assert caught.value.reason == "TENANT_SUSPENDED"
