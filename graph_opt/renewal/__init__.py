"""Refreshing a bundle: what ``convert`` stores for it, and making the graphs again with other weights."""
