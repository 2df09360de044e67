"""The parts of ``export.cut``: which nodes, whose rows, what crosses the boundary, and the frozen graph."""
