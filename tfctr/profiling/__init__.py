"""Measuring and comparing models: paired timing, stock TensorFlow as referee, output comparison."""
