"""Server groups in plans of moves."""
