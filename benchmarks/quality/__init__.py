"""Quality of dynamic tables: generated data whose truth is known, MovieLens-100k, and the model trained on them."""
