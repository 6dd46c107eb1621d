"""Fluctuations of networks of finite width, in numbers."""
