__file__: str
__version__: str
