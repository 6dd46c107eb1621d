"""Expressions of theories on arrays: functions of leaves, and values at one time or over a past."""
