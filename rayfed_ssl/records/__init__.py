"""The records that a run writes into its folder: Parquet tables, TensorBoard, figures, summary and environment."""
