"""How a worker makes itself known to gateways: an entry in Redis, for as long as it lives."""
