"""Planning and carrying out the replacement of proven lookups by fused ops (used by ``passes/fuse_lookups``).

``levels`` finds out which lookups may share an op, ``plan`` puts them into groups and output blocks (folding concats),
``rewrite`` edits the graph.
"""
