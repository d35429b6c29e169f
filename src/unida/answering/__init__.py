"""From features to answers: a class of the source, or unknown."""
