"""Writers of motion files for other programs, one module per format."""

from parc_ray.data.exporters.formats import EXPORTERS, Exporter, file_name

__all__ = ["EXPORTERS", "Exporter", "file_name"]
