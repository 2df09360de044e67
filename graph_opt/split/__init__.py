"""The user/item split: a second form of a signature that computes what depends on the user alone once per user."""
