"""The loader: how images reach the training step, read ahead in threads or processes."""
