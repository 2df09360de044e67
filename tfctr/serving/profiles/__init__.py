"""Profiling while requests are served: every N-th request traced, the whole process recorded for a moment."""
