"""Single tokens as OpenAI's log probabilities name them: text where they are text, bytes where they are not."""

from collections.abc import Callable

TokenText = Callable[[int], bytes | None]  # token id -> what it stands for; None where nobody knows


def spelled(token_id: int, raw: bytes | None) -> str:
    r"""Return a token's name, different for different bytes.

    Parts of a character read `bytes:\xe2\x82`, ids that the tokenizer does not know `token_id:123`.
    """
    if raw is None:
        return f"token_id:{token_id}"
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def bytes_of(raw: bytes | None) -> list[int] | None:
    return None if raw is None else list(raw)
