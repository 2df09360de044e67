"""The effect table: every pass, engine and session setting on and off, on the reference models (``bench_report``)."""
