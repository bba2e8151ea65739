"""How hard Hypothesis searches: `default` at a desk, `ci` the same cases every time, `thorough` by the hour.

Choose with `--hypothesis-profile=NAME`. A failure prints the line that reproduces it.
"""

import os

from hypothesis import settings

# No deadlines: what is measured belongs in `benchmarks/`, and a busy machine is no failure.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, database=None)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile("ci" if os.environ.get("CI") else "default")
