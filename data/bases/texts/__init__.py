"""The texts that bases are pretrained on: public text, wordings of tasks, and narratives."""
