"""What reports are made of: outcome table, grids, claims and checks; statistics, drawing, pages, writers."""
