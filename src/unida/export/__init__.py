"""A run as one file that other programs can run."""
