"""White-box canaries: crafted records in a user's training, looked for in every update.

The bench adds records of its own to a user's training data, each by a coin of its own, and lets the function
train once, unchanged. A hook before every step of a torch optimizer keeps the gradient that is about to be
applied and the weights before it. Afterwards the gradient of each canary at these weights says in which
direction it would have moved the update; how far the updates went that way is its score.

`workbench.training.crafts` makes the records, `record` watches the training, `directions` finds the canaries'
gradients, `scoring` makes one number a canary of them, and `run` plays the game, and another by the scores
that the finished model gives the same canaries.
"""
