"""The passes, one file each; ``graph_opt.pipeline.DEFAULT_PASSES`` is their order."""
