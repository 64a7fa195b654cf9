"""Who the caller is, and which cache is its own, follows from its credential: nothing else may even try to say it."""

import re

# Names of ours that say neither.
_NO_CLAIMS = frozenset({"radixgate-explain", "x-radixgate-explain"})
_CLAIM = re.compile("tenant|radixgate|extrakey|cachekey|cachesalt|cacheversion|adapterrevision")


def claims_identity(name: str) -> bool:
    """Whether a metadata entry, header or field of this name says who the caller is or which cache it uses."""
    return name.lower() not in _NO_CLAIMS and _CLAIM.search(re.sub(r"[^a-z0-9]", "", name.lower())) is not None
