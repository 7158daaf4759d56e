"""Importers for motion files, one module per format."""
