"""What features are like, and what methods cost. It looks on; only a tap that is `auto` lets it steer a run."""
