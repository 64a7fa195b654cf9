"""The engine: decides what runs in each step, and owns the cache's slots while it does."""
