"""Input workers: processes of their own, on other machines if need be, that prepare the batches of a training."""
