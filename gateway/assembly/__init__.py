"""The parts of one gateway, made from its configuration. `gateway.app` starts and stops them."""
