"""Tests for a method's author: tiny runs, and the contract that every method keeps."""

import pytest

# Must precede the imports: failures then show the values that differ, as in test files.
pytest.register_assert_rewrite("rayfed_ssl.testing.contract", "rayfed_ssl.testing.tiny")
from rayfed_ssl.testing.contract import contract  # noqa: E402

__all__ = ["contract"]
