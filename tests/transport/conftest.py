"""The shared suite is no test file by name; its asserts shall explain themselves all the same."""

import pytest

pytest.register_assert_rewrite("tests.transport.conformance")
