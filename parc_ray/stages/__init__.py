"""The stages of the PARC loop, one function each (floor 2)."""
