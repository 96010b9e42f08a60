"""Input workers: separate processes, possibly on other machines, that prepare the batches of a training."""
