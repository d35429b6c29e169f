"""Subsidiary Prototype Alignment under any method."""
