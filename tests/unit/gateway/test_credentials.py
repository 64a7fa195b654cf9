import re

from gateway.identity.credentials import Credential, without_secrets


def test_a_credential_reads_back_from_its_own_spelling() -> None:
    credential = Credential.generate()
    assert Credential.parse(str(credential)) == credential


def test_the_secret_has_256_random_bits_and_no_two_are_alike() -> None:
    made = [Credential.generate() for _ in range(200)]
    assert all(re.fullmatch(r"[0-9a-f]{64}", credential.secret) for credential in made)
    assert len({credential.secret for credential in made}) == len({credential.key_id for credential in made}) == 200


def test_anything_else_is_no_credential() -> None:
    good = str(Credential.generate())
    for text in (
        "",
        "rg_",
        "rg__",
        good[:-1],
        good + "0",
        good.upper(),
        good.replace("rg_", "sk_"),
        " " + good,
        good + "\n",
    ):
        assert Credential.parse(text) is None, text


def test_a_secret_is_recognised_by_its_hash_and_only_under_its_own_id() -> None:
    one, other = Credential.generate(), Credential.generate()
    assert one.matches(one.secret_hash())
    assert not one.matches(other.secret_hash())
    assert not Credential(other.key_id, one.secret).matches(one.secret_hash())


def test_text_that_holds_a_key_is_told_without_its_secret() -> None:
    one, other = Credential.generate(), Credential.generate()
    told = without_secrets(f"{one} and {str(other).upper()}, rg_{one.key_id}")
    assert told == f"rg_{one.key_id}_… and RG_{other.key_id.upper()}_…, rg_{one.key_id}"
    assert without_secrets(str(one)[:40]) == f"rg_{one.key_id}_…"


def test_the_hash_and_the_representation_do_not_give_the_secret_away() -> None:
    credential = Credential.generate()
    assert bytes.fromhex(credential.secret) not in credential.secret_hash()
    assert credential.secret not in repr(credential)
