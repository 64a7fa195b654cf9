"""TLS of every process: certificates and keys in files, read, checked, and taken up again when they change.

Knows sockets, gRPC's credentials and `ssl`; knows nothing of gateways, workers or tenants.
"""
