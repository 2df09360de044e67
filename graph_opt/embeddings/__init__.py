"""Embedding variables that serving only reads, as stock operations over hash files: reading the calls (``calls``),
writing them out (``lowering``), proving that both give the same numbers (``proof``).
"""
