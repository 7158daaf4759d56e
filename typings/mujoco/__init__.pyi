"""MuJoCo's bindings are compiled without type information; nothing is checked behind this name."""

from typing import Any

def __getattr__(name: str) -> Any: ...
