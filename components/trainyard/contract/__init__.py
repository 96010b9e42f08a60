"""The contract between steps and control plane: documents between steps, keys of outputs, plans."""
