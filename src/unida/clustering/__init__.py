"""Clusters of features: k-means, and the consensus of two domains."""
