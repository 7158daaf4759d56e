"""Importers for motion files, one module per format, and what they have in common."""

from parc_ray.data.importers.pipeline import (
    IMPORTERS,
    TRAINING_MIN_FRAMES,
    ImportOptions,
    TooShortError,
    detect,
    finish_clip,
    import_file,
    import_path,
    load_raw,
    refusal,
)
from parc_ray.data.importers.raw import RawMotion

__all__ = [
    "IMPORTERS",
    "TRAINING_MIN_FRAMES",
    "ImportOptions",
    "RawMotion",
    "TooShortError",
    "detect",
    "finish_clip",
    "import_file",
    "import_path",
    "load_raw",
    "refusal",
]
