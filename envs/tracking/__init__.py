"""The motion-tracking task as pure functions and one environment."""
