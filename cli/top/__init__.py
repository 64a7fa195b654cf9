"""`radixgate top`: a live view of workers, gateways and tenants, from their metrics.

    source (scrape, prometheus) -> samples -> trail (growth of counters) -> fleet (rows) -> screen (text)

Only the first and the last touch anything outside; what lies between takes values and returns values.
"""

from cli.top.command import command

__all__ = ["command"]
