"""How much a tenant may use, over all gateways, and what it has used."""
