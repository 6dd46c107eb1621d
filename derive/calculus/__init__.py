"""The mathematics underneath: Gaussian averages and responses, truncated series, recurrences."""
