"""What all tests share: Hypothesis without a deadline, for machines whose cores are shared."""

from hypothesis import settings

settings.register_profile("project", deadline=None)
settings.load_profile("project")
