"""`tfctr serve`: TF Serving's and KServe's protocols over gRPC and HTTP, configuration, metrics, logs."""
