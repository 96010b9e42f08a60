"""Sources of records: bundled data, CSV, image folders, TFRecord and TFDS folders."""
