"""Parts that several methods share, or that would hide a method's algorithm if they stood in its own file."""
