"""What TLS is told to serve with is checked as a whole, and faults are said by the name of the file."""

import time
from pathlib import Path

import pytest

from tests.fakes.authority import DAY_S, Authority
from transport.pems import PemFiles, Pems, TlsFileError, checked, read_raw

NOW = time.time()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> PemFiles:
    cert, key = authority.server().write(tmp_path)
    return PemFiles(cert, key, authority.write(tmp_path))


def read(files: PemFiles, now: float = NOW) -> Pems:
    return checked(read_raw(files), files, now)


def fault(files: PemFiles, now: float = NOW) -> TlsFileError:
    with pytest.raises(TlsFileError) as caught:
        read(files, now)
    return caught.value


def test_what_belongs_together_is_read(files: PemFiles, authority: Authority) -> None:
    pems = read(files)
    assert pems.chain == Path(files.cert_file).read_bytes()
    assert pems.peer_ca == authority.pem
    assert NOW < pems.expires_at <= time.time() + DAY_S


def test_text_around_a_certificate_and_whole_chains_are_fine(files: PemFiles, authority: Authority) -> None:
    path = Path(files.cert_file)
    path.write_bytes("Größe: über alles\n".encode() + path.read_bytes() + b"# issued by\n" + authority.pem)
    assert read(files).chain.count(b"BEGIN CERTIFICATE") == 2


def test_the_key_of_another_certificate_is_refused(files: PemFiles, authority: Authority) -> None:
    Path(files.key_file).write_bytes(authority.server().key)
    error = fault(files)
    assert error.reason == "mismatch"
    assert files.key_file in str(error)
    assert files.cert_file in str(error)


@pytest.mark.parametrize("which", ["cert_file", "key_file", "peer_ca_file"])
@pytest.mark.parametrize("content", [b"", b"no PEM at all", None], ids=["empty", "text", "cut off"])
def test_what_is_no_pem_is_refused_by_name(files: PemFiles, which: str, content: bytes | None) -> None:
    path = Path(getattr(files, which))
    path.write_bytes(path.read_bytes()[:-60] if content is None else content)
    error = fault(files)
    assert error.reason == "malformed"
    assert str(path) in str(error)


@pytest.mark.parametrize("which", ["cert_file", "key_file", "peer_ca_file"])
def test_what_is_not_there_is_refused_by_name(files: PemFiles, which: str) -> None:
    path = Path(getattr(files, which))
    path.unlink()
    error = fault(files)
    assert error.reason == "unreadable"
    assert str(path) in str(error)


def test_certificate_and_key_the_wrong_way_round_are_refused(files: PemFiles) -> None:
    error = fault(PemFiles(files.key_file, files.cert_file))
    assert error.reason == "malformed"


def test_an_encrypted_key_is_refused(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.server(password=b"open sesame").write(tmp_path)
    assert "encrypted" in str(fault(PemFiles(cert, key)))


def test_an_expired_certificate_is_refused_and_so_is_one_that_is_not_valid_yet(files: PemFiles) -> None:
    assert fault(files, NOW + 2 * DAY_S).reason == "expired"
    assert fault(files, NOW - 2 * DAY_S).reason == "not_yet_valid"


def test_one_authority_that_is_still_valid_is_enough(files: PemFiles, authority: Authority) -> None:
    assert files.peer_ca_file is not None
    path = Path(files.peer_ca_file)
    path.write_bytes(authority.issue("old authority", expires_in_s=-DAY_S).chain)
    error = fault(files)
    assert (error.reason, files.peer_ca_file in str(error)) == ("expired", True)
    path.write_bytes(path.read_bytes() + authority.pem)
    assert read(files).peer_ca == path.read_bytes()


def test_no_error_and_no_text_form_shows_the_key(files: PemFiles) -> None:
    secret = Path(files.key_file).read_text().splitlines()[1]
    assert secret not in repr(read(files))
    assert secret not in repr(read_raw(files))
    Path(files.key_file).write_text("-----BEGIN PRIVATE KEY-----\n" + secret + "\n-----END PRIVATE KEY-----\n")
    assert secret not in str(fault(files))
