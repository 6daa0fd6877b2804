"""The exports of a run: embeddings of images, exported encoders, model cards."""
