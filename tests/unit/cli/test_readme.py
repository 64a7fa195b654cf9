"""The README's table of tiers is whole. What it tells people to type and to set is tried in tests/docs."""

import re
from dataclasses import fields

from tests.tools import REPOSITORY
from worker.config import CacheConfig, StorageConfig

README = (REPOSITORY / "README.md").read_text("utf-8")


def test_settings_in_the_table_of_tiers_are_all_that_there_are() -> None:
    table = README[README.index("| `worker.cache.` |") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split(" | ")[0])}
    there_are = {field.name for field in fields(CacheConfig)} | {
        f"storage.{field.name}" for field in fields(StorageConfig)
    }
    elsewhere = {"num_slots", "memory_bytes", "page_size", "hit_threshold", "storage", "shares"}
    assert named == there_are - elsewhere
