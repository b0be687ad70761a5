"""Offline LLM inference as Dagster assets."""
