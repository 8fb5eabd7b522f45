"""Tasks on the workers of a Dask scheduler: the parent, its way to the scheduler, and the worker."""
