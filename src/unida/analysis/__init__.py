"""Measures of features, and the cost of methods. A run does not depend on them, unless a tap is `auto`."""
