"""What operators want of the workers: adapters, public prefixes, purges. Keeps it, and sees that it comes true."""
