"""Deltas on disk: what identifies a version of a bundle, the folder of a delta, and how one gives the next version.

  identity.py      base hash, hash of a version, the order of deltas
  delta_folder.py  ``delta.json`` and the one reader of it; delta_writer.py: the one writer
  apply.py         BUNDLE + deltas -> a new version folder
  compact.py       a version with overlays -> one without

Format and rules: docs/deltas.md.
"""
