"""What a reader sees: pages, plots and tables, made from records alone."""
