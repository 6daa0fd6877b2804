"""CSV and TSV files that name image files (``data.name: table``)."""
