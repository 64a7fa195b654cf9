"""hicache: a token-level radix cache over device memory, host memory and shared storage.

A library of its own. This module stays empty on purpose: `import hicache.keys` must cost a gateway no torch and no
tree.
"""
