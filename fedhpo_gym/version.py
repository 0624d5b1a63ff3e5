"""The version of the package, which run records and studies hold."""

__version__ = "0.1.0"
