"""The code that runs on a device beside an exported file, with NumPy alone (Pillow for images).

These modules, and those of `values` that they use, go into one file, `preprocess.py` (see `bundle`), and so keep to
Python 3.9 and import nothing else of Trainyard.
"""
