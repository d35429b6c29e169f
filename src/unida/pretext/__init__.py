"""Self-supervised tasks whose labels come from how an image was made, not from a person."""
