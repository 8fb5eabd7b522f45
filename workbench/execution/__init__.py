"""The one engine: tasks, the store of their records, and where tasks run (here, a pool, Dask).

Only the parent process writes the store; a task that fails or kills its worker is a recorded failure.
"""
