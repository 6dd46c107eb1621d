"""What all tests share, for machines whose cores are shared: no deadline in Hypothesis, one BLAS thread."""

from hypothesis import settings
from threadpoolctl import threadpool_limits

settings.register_profile("project", deadline=None)
settings.load_profile("project")

threadpool_limits(limits=1, user_api="blas")
