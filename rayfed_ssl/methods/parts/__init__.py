"""What several methods share, or what would hide a method's algorithm in its own file."""
