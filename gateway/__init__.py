"""The gRPC gateway: authenticates callers, tags their requests with an extra key and streams them through the workers.

Layers: app > rpc > dispatch > routing | prompts > identity > errors | config | observer. No torch; of hicache only
`hicache.keys`.
"""
