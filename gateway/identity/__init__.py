"""Who is calling, and which part of the cache is theirs: tenants, API keys, cache versions, extra keys."""
