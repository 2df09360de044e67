"""The dense tower on its way to an engine: cut out of the graph, exported, narrowed, compiled. Offline only."""
