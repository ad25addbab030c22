"""Settings: what they are, where each value came from, and the job's secret.

Read in this order: ``values`` (text to value), ``fields`` (bounds), ``settings`` (the model),
``loader`` (flags, environment, file, defaults). Beside them stand ``environment``, the only
module that reads the process's environment, and ``secret``.
"""
