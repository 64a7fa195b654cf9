"""The radix tree: which prefixes are cached in which tier, who may be evicted, and what pages are called."""
