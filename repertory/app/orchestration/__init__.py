"""Graphs and swarms, as users name them."""
