"""The gateway's gRPC services: the boundary where calls become values and errors become statuses."""
