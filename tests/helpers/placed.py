"""Where tests have their variables: on CPUs, or with `DTOPT_TEST_DEVICE=GPU` on a GPU."""

import os

KIND = os.environ.get("DTOPT_TEST_DEVICE", "CPU")
ON_GPU = KIND == "GPU"
