"""Constraints on completions: JSON schemas, regular expressions and choices, compiled to what may follow."""
