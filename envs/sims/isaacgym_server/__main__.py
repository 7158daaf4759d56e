"""Start of the server: ``PYTHON envs/sims/isaacgym_server --control FD --lifeline FD --memory FD``.

Run as a directory, so that neither the project nor its neighbours (a module here is called like
NVIDIA's package) come into the import path. The package is then loaded by hand under its own name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "isaacgym_server"


def load_package() -> None:
    """Import this directory as the package `isaacgym_server`."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != HERE]
    spec = importlib.util.spec_from_file_location(
        NAME, os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE]
    )
    if spec is None or spec.loader is None:
        raise ImportError(HERE + " cannot be loaded as a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load_package()
    sys.exit(importlib.import_module(NAME + ".server").main(sys.argv[1:]))
