"""The bundle on disk: what the converter hands over to serving. Files only; no graph, no table is interpreted here."""
