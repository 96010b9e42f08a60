"""The files in each step's folder: the contract between the steps, one module per step.

Steps share these documents and the files that they name, never code. Every path in a document is relative to the
folder that holds it.
"""
