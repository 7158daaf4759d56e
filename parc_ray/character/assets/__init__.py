"""Character models that ship with the package."""
