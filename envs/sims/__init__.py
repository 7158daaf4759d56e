"""Physics back ends behind one protocol."""
