"""Small SavedModels of every family that tfctr is meant to read; see ``zoo.py``."""
