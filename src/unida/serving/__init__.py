"""A finished run as a page and a JSON API."""
