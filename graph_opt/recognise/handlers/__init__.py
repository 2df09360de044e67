"""Handlers by op type; importing this package registers all of them."""

from graph_opt.recognise.handlers import gather, ids, masks, partition, pooling, ragged, shapes, sparse

__all__ = ["gather", "ids", "masks", "partition", "pooling", "ragged", "shapes", "sparse"]
