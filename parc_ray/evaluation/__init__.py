"""Metrics, protocols and tables (floor 2)."""
