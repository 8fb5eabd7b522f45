"""Forced replay: what a user's training code releases of one record, measured in its own runs.

The user's function is called several times with one seed, its code unchanged. A hook before every step of a
torch optimizer sees the gradient that is about to be applied:

- **Run A** is the training as it is, twice: where the two are not equal to the bit, nothing can be replayed.
- **Run B** has no noise (draws of noise come back as zero, the generators advance as ever), and before each
  step its gradient is replaced by run A's. So its weights are run A's at every step, and A minus B is the
  noise of each step, exactly.
- **Runs C** are run B with one record replaced. C minus B is what that record moves the released update, at
  equal weights: its exact sensitivity, and the steps that it took part in.

Whatever else differs between B and C (weights, the number of steps, the finished model's scores) left the
training past the noise. Where no single torch optimizer is given all that moves the weights, steps are read
and forced by these (`by_weights`).

`record` runs, `own` makes A and B, `measure` reads the recordings, `judging` compares with the claim.
"""
