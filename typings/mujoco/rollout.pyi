"""See the package stub."""

from typing import Any

def __getattr__(name: str) -> Any: ...
