"""Small helpers that know nothing of images or methods."""
