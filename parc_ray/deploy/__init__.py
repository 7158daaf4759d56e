"""Trained models as files that run elsewhere: ONNX, and bundles of a whole run."""
