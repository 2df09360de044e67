"""Engines that run a dense tower instead of TensorFlow: what one is made of (`spec`), and running it (`native`)."""
