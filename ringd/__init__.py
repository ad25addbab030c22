"""ringd: collective communication for PyTorch and NumPy as a system of daemons."""

__version__ = "0.1.0"
