"""CSV, TSV and JSON Lines files that name image files (``data.name: table``)."""
