"""What the papers' checks share: verdicts, balls, distinguishing events, information inequalities, lemmas."""
