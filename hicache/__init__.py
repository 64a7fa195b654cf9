"""hicache: a token-level radix cache of KV in device memory.

A library of its own. This module stays empty on purpose: `import hicache.keys` must cost a gateway no torch and no
tree.
"""
