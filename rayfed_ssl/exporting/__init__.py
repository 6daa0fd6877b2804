"""What a run is taken away as: embeddings of images, exported encoders, model cards."""
