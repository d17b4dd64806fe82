"""Config: the schema of a run, and how recipes and YAML files become one."""
