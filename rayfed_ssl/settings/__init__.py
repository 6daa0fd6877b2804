"""A run's configuration: blocks, YAML files and overrides, the wording of errors."""
