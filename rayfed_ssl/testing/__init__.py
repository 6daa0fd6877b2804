"""What a method's author tests with: tiny runs, and the contract that every method keeps."""

import pytest

# Before they are imported: failures then show the values that differ, as those of test files do.
pytest.register_assert_rewrite("rayfed_ssl.testing.contract", "rayfed_ssl.testing.tiny")
from rayfed_ssl.testing.contract import contract  # noqa: E402

__all__ = ["contract"]
