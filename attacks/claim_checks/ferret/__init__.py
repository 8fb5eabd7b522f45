"""FERRET: statements by certificate and proof, the Rényi appendix, the channel, the transcript, an attack."""
