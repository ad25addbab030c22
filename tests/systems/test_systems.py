"""Each program of examples/torch/ runs with gloo and with ringd, and both have the same losses.

With two ranks a sum has one order, so everything is equal bit for bit, parameters too, and that is
demanded. With more ranks gloo and ringd add in different orders: the sums differ by some units in
the last place (6e-8, relative), and over the steps of a run the losses by less than 1e-6. Where a
program moves data only (a pipeline), or adds in an order of its own, the bits are equal for any
number of ranks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.serial, pytest.mark.timeout(240)]

TOP = Path(__file__).resolve().parents[2]
EXAMPLES = TOP / "examples" / "torch"
TOLERANCE = 1e-6
TIMEOUT_S = 100.0
