"""Panels of the page: each adds its controls and hands what they say to the session."""
