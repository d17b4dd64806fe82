"""The paper's tables and figures, each made again by one call."""
