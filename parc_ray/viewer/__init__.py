"""Looking at motions: browser viewer and headless pictures."""
