"""Long times under weight decay: outputs, and the ridge regression to which they converge."""
