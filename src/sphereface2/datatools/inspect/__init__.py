"""What is wrong with training images, without a model: sphereface2 inspect."""
