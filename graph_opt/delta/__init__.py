"""Making deltas: what changed from a version of a bundle to a newer state of its model.

  base.py      the version that a delta is to follow, table by table
  places.py    where the newer rows of each table lie
  rows.py      the comparison of rows, by the native library
  dense.py     graph, dense weights, vocabularies and engines, by the machinery of a refresh
  training.py  checkpoints of training: which tensor is which weight of the model
  make.py      all of it

Format and rules: docs/deltas.md.
"""
