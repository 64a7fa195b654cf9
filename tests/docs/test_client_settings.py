"""What the page on fleets has clients set is what the tests' clients set."""

import json

from benchmarks.fleet_client import SERVICE_CONFIG
from tests.docs.pages import BLOCKS


def test_the_service_config_of_the_page_is_that_of_the_clients_that_notice_nothing() -> None:
    told = [json.loads(block.text) for block in BLOCKS if block.page.endswith("fleet.md") and block.kind == "json"]
    assert told == [SERVICE_CONFIG]
