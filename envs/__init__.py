"""Simulated worlds: simulators, the tracking task, the recorder (floor 1)."""
