"""The pictures of docs/cache.md, and what draws them."""
