"""Pictures and films of motions on terrain, drawn without a display."""
