"""Which worker gets a request. Values in, values out: no gRPC, no clock."""
