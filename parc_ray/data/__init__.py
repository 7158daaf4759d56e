"""Arrow schema, dataset store, importers and window sampling (floor 1)."""
