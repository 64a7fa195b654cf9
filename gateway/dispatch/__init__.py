"""Takes requests to workers and their tokens back: one multiplexed stream per worker."""
