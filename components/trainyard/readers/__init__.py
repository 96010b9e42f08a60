"""One reader a format, for training, prediction and inspection: tables, and the headers of images."""
