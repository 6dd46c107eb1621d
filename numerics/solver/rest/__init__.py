"""Long times under weight decay: outputs, and the ridge regression that they come to rest at."""
