"""Parquet files, of this machine and of the Hugging Face Hub (``data.name: parquet``, ``hub``)."""
