"""A run from options to results, and the files it leaves behind."""
