"""What features are like, and what methods cost: studies beside training, never part of it."""
