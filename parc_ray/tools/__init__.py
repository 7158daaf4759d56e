"""Commands of ``parc`` that are not stages of the loop, one module each."""
