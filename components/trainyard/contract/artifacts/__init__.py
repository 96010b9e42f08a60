"""What each step's folder holds: the contract between the steps, a file a step.

Steps share these documents and the files that they name, never code. Every path in a document is relative to the
folder that holds it.
"""
