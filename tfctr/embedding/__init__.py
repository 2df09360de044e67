"""Embedding variables: collision-free tables that grow with the ids they meet, trained on stock TensorFlow."""
