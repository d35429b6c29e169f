"""Recipes: new images made from images. One file each."""
