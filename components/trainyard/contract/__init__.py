"""What the steps and the control plane agree on: documents between steps, keys of outputs, plans."""
