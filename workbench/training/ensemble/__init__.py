"""Many models of one architecture, trained at once by products of stacked matrices.

`together` has the training loop, `draws` the samples, and `stacked` what the loop needs of the models:
`network` has it for stacked linear layers, `adapters` for LoRA adapters over one frozen language model.
"""
