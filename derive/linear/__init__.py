"""Theories that are linear in their fields: their form, closure, projections and propagators."""
