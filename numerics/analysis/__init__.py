"""What is asked of solutions: scans, largest rates, early times, infinite depth, distributions, slopes."""
