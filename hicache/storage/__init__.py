"""The storage tier: pages of KV by name, in a store that all workers share. Knows bytes, no tensors and no tree."""
