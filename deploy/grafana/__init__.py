"""Grafana dashboards, written as code; the JSON files that Grafana provisions are made from it."""
