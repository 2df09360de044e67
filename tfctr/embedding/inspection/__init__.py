"""What a checkpoint, SavedModel or bundle holds of embedding tables: shown, compared, written out, read in."""
