"""One module for each question about isolation."""
