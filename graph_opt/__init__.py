"""graph_opt: SavedModel in, a smaller graph that gives the same numbers out.

``saved_model`` reads and inlines, ``passes`` rewrite in the order of ``pipeline.DEFAULT_PASSES``, ``recognise`` finds embedding
lookups by meaning, ``prove`` proves each of them by execution, ``convert`` does all of it and writes a bundle.
"""
