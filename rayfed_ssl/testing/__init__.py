"""What a method's author tests with: tiny runs, and the contract that every method keeps."""

from rayfed_ssl.testing.contract import contract

__all__ = ["contract"]
