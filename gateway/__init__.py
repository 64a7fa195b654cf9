"""The gateway: authenticates callers, keeps their limits, tags their requests and streams them through the workers.

Layers: app > assembly > rpc | http > control > serving > dispatch > routing | quota | prompts > identity >
config | observer > policy > errors. No torch; of hicache only `hicache.keys`.
"""
