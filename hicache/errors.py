"""What can go wrong in the cache, in its own words. A miss is not an error."""


class HicacheError(Exception):
    """Base of every error that a caller of this library can provoke."""


class InvalidKeyError(HicacheError, ValueError):
    """A key, namespace or secret that cannot stand for what it should; the message names the field and the limit."""


class LeaseError(HicacheError, ValueError):
    """A lease was used against its contract: after its release, or with a key that does not continue its own."""


class InvariantError(AssertionError):
    """The cache contradicts itself: `check()` found what this message says."""
