"""Writing images and pairs in another form: sphereface2 convert."""
